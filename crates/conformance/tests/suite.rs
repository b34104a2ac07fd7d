//! Every rule on every store. One module and one line for each.

mod memory {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::memory);
}

mod file {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::file);
}

mod postgres {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::postgres);
}

mod postgres_session {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::postgres_session);
}

mod redis {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::redis);
}

mod sentinel {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::sentinel);
}

mod etcd {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::etcd);
}

mod cluster {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::cluster);
}

mod redlock {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::redlock);
}

mod zookeeper {
    fencepost_conformance::conformance_suite!(fencepost_conformance::sites::zookeeper);
}
