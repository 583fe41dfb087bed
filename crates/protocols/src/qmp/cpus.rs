//! The answer to `query-cpus-fast`: `CpuInfoFast` of QEMU's qapi/machine.json, as far as it names
//! threads.
//!
//! What it does not do: send the command, or check that the threads are QEMU's.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A vCPU and the thread that runs it. Under TCG with `thread=single` several have the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpuThread {
    /// `cpu-index`.
    pub cpu_index: u32,
    /// `thread-id`: as the host's kernel numbers it.
    pub thread_id: u32,
}

/// A reply that is not a list of `CpuInfoFast`.
#[derive(Debug, thiserror::Error)]
#[error("the reply to query-cpus-fast has an unexpected shape; is this QEMU newer than Timevisor?")]
pub struct UnexpectedCpus(#[source] serde_json::Error);

/// Reads the value of a successful reply.
///
/// # Errors
/// [`UnexpectedCpus`] when it is not a list, or an element lacks `cpu-index` or `thread-id`.
pub fn cpu_threads(reply: &Value) -> Result<Vec<CpuThread>, UnexpectedCpus> {
    Vec::deserialize(reply).map_err(UnexpectedCpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_reply_is_read() {
        let reply = json!([
            {"thread-id": 25627, "props": {"core-id": 0}, "qom-path": "/machine/unattached/device[0]",
             "cpu-index": 0, "target": "x86_64"},
            {"thread-id": 25628, "cpu-index": 1, "target": "x86_64"},
        ]);
        let of = |cpu_index, thread_id| CpuThread { cpu_index, thread_id };
        assert_eq!(cpu_threads(&reply).unwrap(), [of(0, 25627), of(1, 25628)]);
        assert!(cpu_threads(&json!([{"cpu-index": 0}])).is_err());
        assert!(cpu_threads(&json!([{"cpu-index": -1, "thread-id": 7}])).is_err());
        assert!(cpu_threads(&Value::Null).is_err());
    }
}
