//! The bare requests that a lock is made of, to be measured beside it.

use std::sync::Arc;

use fencepost_core::{
    clock::BootClock,
    error::{Error, Operation},
};
use tonic::{Status, transport::Channel};

use crate::{
    EtcdConfig,
    api::{
        DeleteRangeRequest, KvClient, LeaseClient, LeaseGrantRequest, LeaseRevokeRequest, TxnRequest, created_by, put,
    },
    failure::Failure,
    link::Link,
};

/// One connection of the kind that a store has, and a lease for what is put over it.
#[derive(Clone, Debug)]
pub struct BareEtcd {
    channel: Channel,
    lease: i64,
    address: Arc<str>,
}

impl BareEtcd {
    /// Connects, and grants a lease of ten minutes.
    ///
    /// # Errors
    /// As [`EtcdStore::open`](crate::EtcdStore::open).
    pub async fn connect(config: &EtcdConfig) -> Result<Self, Error> {
        let link = Link::new(config, BootClock::shared())?;
        let connection = link.connection().await.map_err(|failure| failure.error(Operation::Open, None))?;
        let mut bare = Self { channel: connection.channel, lease: 0, address: connection.address };
        let granted = LeaseClient::new(bare.channel.clone()).lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await;
        bare.lease = granted.map_err(|status| bare.failed(&status))?.into_inner().id;
        Ok(bare)
    }

    /// One transaction: puts the key on the lease if it is absent.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub async fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let success = vec![put(key, value, self.lease)];
        let txn = TxnRequest { compare: vec![created_by(key, 0)], success, failure: Vec::new() };
        let answer = KvClient::new(self.channel.clone()).txn(txn).await;
        Ok(answer.map_err(|status| self.failed(&status))?.into_inner().succeeded)
    }

    /// One delete.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let delete = DeleteRangeRequest { key: key.to_vec(), ..Default::default() };
        KvClient::new(self.channel.clone()).delete_range(delete).await.map_err(|status| self.failed(&status))?;
        Ok(())
    }

    /// Ends the lease.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub async fn close(&self) -> Result<(), Error> {
        let revoked = LeaseClient::new(self.channel.clone()).lease_revoke(LeaseRevokeRequest { id: self.lease }).await;
        revoked.map_err(|status| self.failed(&status))?;
        Ok(())
    }

    fn failed(&self, status: &Status) -> Error {
        Failure::answered(status, &self.address).error(Operation::Run, None)
    }
}
