//! What etcd understands: the generated messages, and short names for those that we send.

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used)]
mod generated {
    include!("generated/etcdserverpb.rs");
}

pub(crate) use generated::{
    auth_client::AuthClient, compare::CompareResult, compare::CompareTarget, compare::TargetUnion, event::EventType,
    kv_client::KvClient, lease_client::LeaseClient, range_request::SortOrder, range_request::SortTarget,
    request_op::Request, response_op::Response, watch_client::WatchClient, watch_create_request::FilterType,
    watch_request::RequestUnion, *,
};

/// Operations in one transaction, as many as etcd takes by default (`--max-txn-ops`). Conditions are counted by themselves.
pub(crate) const MAX_TXN_OPS: usize = 128;

/// All keys that begin with `prefix`.
pub(crate) fn below(prefix: &[u8]) -> RangeRequest {
    RangeRequest { key: prefix.to_vec(), range_end: end_of(prefix), ..Default::default() }
}

/// The key behind all that begin with `prefix`.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0] // etcd's way of saying "to the end"
}

/// One key.
pub(crate) fn exactly(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..Default::default() }
}

impl RangeRequest {
    /// The oldest keys first.
    pub(crate) fn oldest(mut self, limit: i64) -> Self {
        (self.sort_order, self.sort_target, self.limit) = (SortOrder::Ascend.into(), SortTarget::Create.into(), limit);
        self
    }

    /// The youngest keys first.
    pub(crate) fn youngest(mut self, limit: i64) -> Self {
        (self.sort_order, self.sort_target, self.limit) = (SortOrder::Descend.into(), SortTarget::Create.into(), limit);
        self
    }

    /// Only keys that are older than the one which this revision created.
    pub(crate) fn before(mut self, created: i64) -> Self {
        self.max_create_revision = created - 1;
        self
    }

    /// At most so many, by their keys.
    pub(crate) fn limited(mut self, limit: i64) -> Self {
        self.limit = limit;
        self
    }

    /// How many there are, and none of them.
    pub(crate) fn counted(mut self) -> Self {
        self.count_only = true;
        self
    }

    /// Without the values.
    pub(crate) fn bare(mut self) -> Self {
        self.keys_only = true;
        self
    }

    pub(crate) fn op(self) -> RequestOp {
        RequestOp { request: Some(Request::RequestRange(self)) }
    }
}

pub(crate) fn put(key: &[u8], value: &[u8], lease: i64) -> RequestOp {
    let put = PutRequest { key: key.to_vec(), value: value.to_vec(), lease, ..Default::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

pub(crate) fn delete(key: &[u8]) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.to_vec(), ..Default::default() };
    RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

/// Writes a key that hangs on somebody's lease, and leaves it there.
pub(crate) fn put_again(key: &[u8], value: &[u8]) -> RequestOp {
    let put = PutRequest { key: key.to_vec(), value: value.to_vec(), ignore_lease: true, ..Default::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

/// A transaction inside another.
pub(crate) fn inner(txn: TxnRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestTxn(txn)) }
}

/// That the key was created by this revision; that there is no such key, with 0.
pub(crate) fn created_by(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        range_end: Vec::new(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

/// That the key was last changed by this revision; that there is no such key, with 0.
pub(crate) fn changed_by(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.to_vec(),
        range_end: Vec::new(),
        target_union: Some(TargetUnion::ModRevision(revision)),
    }
}

/// That no key begins with `prefix`.
pub(crate) fn none_below(prefix: &[u8]) -> Compare {
    Compare { range_end: end_of(prefix), ..created_by(prefix, 0) }
}

/// That there is no key in the range.
pub(crate) fn none_in(range: &RangeRequest) -> Compare {
    Compare { range_end: range.range_end.clone(), ..created_by(&range.key, 0) }
}

/// That no key that begins with `prefix` was created or written after this revision.
pub(crate) fn unchanged_below(prefix: &[u8], since: i64) -> Compare {
    Compare { result: CompareResult::Less.into(), range_end: end_of(prefix), ..changed_by(prefix, since + 1) }
}

/// The revision of an answer.
pub(crate) fn revision(header: &Option<ResponseHeader>) -> i64 {
    header.as_ref().map_or(0, |header| header.revision)
}

impl TxnResponse {
    /// The answers to the reads of a transaction, in order.
    pub(crate) fn ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.responses.into_iter().filter_map(|op| match op.response {
            Some(Response::ResponseRange(range)) => Some(range),
            _ => None,
        })
    }

    /// The first key of each read, in order.
    pub(crate) fn firsts(self) -> impl Iterator<Item = Option<KeyValue>> {
        self.ranges().map(|read| read.kvs.into_iter().next())
    }

    /// The first key of the last read.
    pub(crate) fn last_read(&self) -> Option<&KeyValue> {
        match self.responses.last()?.response.as_ref()? {
            Response::ResponseRange(range) => range.kvs.first(),
            _ => None,
        }
    }

    /// The answer to the transaction inside this one.
    pub(crate) fn inner(self) -> Option<TxnResponse> {
        self.responses.into_iter().find_map(|op| match op.response {
            Some(Response::ResponseTxn(txn)) => Some(txn),
            _ => None,
        })
    }

    /// How many keys a transaction deleted.
    pub(crate) fn deleted(&self) -> i64 {
        let counts = self.responses.iter().map(|op| match &op.response {
            Some(Response::ResponseDeleteRange(deleted)) => deleted.deleted,
            _ => 0,
        });
        counts.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(end_of(b"a/"), b"a0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
    }
}
