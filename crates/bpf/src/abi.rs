//! Numbers of `linux/bpf.h`.

/// Helper `bpf_map_lookup_elem`.
pub const MAP_LOOKUP_ELEM: i32 = 1;
/// Helper `bpf_map_update_elem`.
pub const MAP_UPDATE_ELEM: i32 = 2;
/// Helper `bpf_map_delete_elem`.
pub const MAP_DELETE_ELEM: i32 = 3;
/// Helper `bpf_skc_lookup_tcp`, since Linux 5.2.
pub const SKC_LOOKUP_TCP: i32 = 99;
/// Helper `bpf_tcp_check_syncookie`, since Linux 5.2.
pub const TCP_CHECK_SYNCOOKIE: i32 = 100;
/// Helper `bpf_sk_release`.
pub const SK_RELEASE: i32 = 86;
/// Helper `bpf_ktime_get_ns`.
pub const KTIME_GET_NS: i32 = 5;
/// Helper `bpf_get_smp_processor_id`.
pub const GET_SMP_PROCESSOR_ID: i32 = 8;
/// Helper `bpf_get_current_pid_tgid`.
pub const GET_CURRENT_PID_TGID: i32 = 14;
/// Helper `bpf_get_current_task`.
pub const GET_CURRENT_TASK: i32 = 35;
/// Helper `bpf_redirect_map`.
pub const REDIRECT_MAP: i32 = 51;
/// Helper `bpf_skb_load_bytes`.
pub const SKB_LOAD_BYTES: i32 = 26;
/// Helper `bpf_skc_to_tcp_sock`.
pub const SKC_TO_TCP_SOCK: i32 = 137;
/// Helper `bpf_probe_read_kernel`.
pub const PROBE_READ_KERNEL: i32 = 113;

/// Map type `BPF_MAP_TYPE_HASH`.
pub const MAP_TYPE_HASH: u32 = 1;
/// Map type `BPF_MAP_TYPE_ARRAY`.
pub const MAP_TYPE_ARRAY: u32 = 2;
/// Map type `BPF_MAP_TYPE_PERCPU_HASH`.
pub const MAP_TYPE_PERCPU_HASH: u32 = 5;
/// Map type `BPF_MAP_TYPE_PERCPU_ARRAY`.
pub const MAP_TYPE_PERCPU_ARRAY: u32 = 6;
/// Map type `BPF_MAP_TYPE_LRU_HASH`.
pub const MAP_TYPE_LRU_HASH: u32 = 9;
/// Map type `BPF_MAP_TYPE_XSKMAP`.
pub const MAP_TYPE_XSKMAP: u32 = 17;

/// Map flag `BPF_F_NO_PREALLOC`: the memory of an entry is allocated when the entry is inserted.
pub const NO_PREALLOC: u32 = 1;

/// Result of an XDP program: the frame goes on to the kernel's network stack.
pub const XDP_PASS: i32 = 2;

/// Result of a program at a device's ingress (tcx): the next program decides, or the frame goes on.
pub const TCX_NEXT: i32 = -1;
