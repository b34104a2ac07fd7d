use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_core::{
    capabilities::Capabilities,
    memory::{self, MemorySpace},
    store::BoxFuture,
};

use crate::site::{DoesNotApply, Site, Tampering, Verdict};

/// A memory space of its own.
#[derive(Debug)]
pub struct MemorySite {
    name: String,
}

/// A fresh space.
pub async fn memory() -> MemorySite {
    static SITES: AtomicU64 = AtomicU64::new(0);
    MemorySite { name: format!("site-{}", SITES.fetch_add(1, Ordering::Relaxed)) }
}

impl MemorySite {
    fn space(&self) -> MemorySpace {
        MemorySpace::named(&self.namespace(), &self.name)
    }
}

impl Site for MemorySite {
    fn capabilities(&self) -> Capabilities {
        memory::capabilities()
    }

    fn url(&self) -> String {
        format!("memory:{}", self.name)
    }

    fn apart(&self) -> Verdict {
        Err(DoesNotApply("a memory space lives in one process"))
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match how {
                Tampering::Delete(name) => {
                    self.space().delete(name);
                    Ok(())
                }
                _ => Err(DoesNotApply("nobody but its clients can change a memory space")),
            }
        })
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            let records = self.space().records();
            if records == 0 { Vec::new() } else { vec![format!("{records} records")] }
        })
    }
}
