//! The tables of the file, letter by letter.

use std::collections::BTreeSet;

use abey_delivery::Family;
use abey_input::{EpollTable, NapiTable, Time};
use abey_linux::cpu::{CpuList, SchedulingPolicy};
use abey_tune::Goal;
use glob::Pattern;
use serde::Deserialize;
use toml::Spanned;

use crate::model::OnUnsupported;
use crate::value::{CpuChoice, KernelMode, Mac, Port, Queues, Text};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Document {
    pub(super) version: Spanned<u32>,
    pub(super) on_unsupported: Option<Spanned<OnUnsupported>>,
    #[serde(default)]
    pub(super) device: Vec<Spanned<DeviceTable>>,
    #[serde(default)]
    pub(super) program: Vec<Spanned<ProgramTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DeviceTable {
    pub(super) name: Option<Text<Pattern>>,
    pub(super) driver: Option<Text<Pattern>>,
    pub(super) address: Option<Text<Mac>>,
    pub(super) pci: Option<Text<Pattern>>,
    #[serde(default)]
    pub(super) optional: bool,
    pub(super) on_unsupported: Option<OnUnsupported>,
    pub(super) channels: Option<Spanned<u32>>,
    pub(super) rss: Option<Spanned<Text<BTreeSet<u32>>>>,
    pub(super) mode: Option<Spanned<Text<KernelMode>>>,
    pub(super) settings: Option<Spanned<NapiTable>>,
    #[serde(default)]
    pub(super) queues: Vec<QueueTable>,
    #[serde(default)]
    pub(super) flows: Vec<FlowTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct QueueTable {
    pub(super) queues: Spanned<Text<Queues>>,
    pub(super) mode: Option<Spanned<Text<KernelMode>>>,
    pub(super) settings: Option<Spanned<NapiTable>>,
    pub(super) ports: Option<Spanned<Vec<Text<Port>>>>,
    pub(super) irq_cpus: Option<Spanned<Text<CpuChoice>>>,
    pub(super) xps_cpus: Option<Spanned<Text<CpuChoice>>>,
    pub(super) thread: Option<Spanned<ThreadTable>>,
    pub(super) tune: Option<Spanned<TuneTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct TuneTable {
    pub(super) goal: Text<Goal>,
    pub(super) gro_flush_timeout: Option<[Time; 2]>,
    pub(super) irq_suspend_timeout: Option<[Time; 2]>,
    pub(super) modes: Option<Vec<Text<Family>>>,
    pub(super) latencies: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct FlowTable {
    pub(super) ports: Spanned<Vec<Text<Port>>>,
    pub(super) queues: Spanned<Text<BTreeSet<u32>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ThreadTable {
    pub(super) cpus: Option<Text<CpuChoice>>,
    pub(super) policy: Option<Text<SchedulingPolicy>>,
    pub(super) priority: Option<Spanned<u8>>,
    pub(super) nice: Option<Spanned<i8>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ProgramTable {
    pub(super) unit: Option<Spanned<String>>,
    pub(super) executable: Option<Spanned<String>>,
    pub(super) device: Option<Spanned<Text<Pattern>>>,
    pub(super) queues: Option<Spanned<Text<BTreeSet<u32>>>>,
    pub(super) mode: Option<Spanned<Text<KernelMode>>>,
    pub(super) epoll: Option<Spanned<EpollTable>>,
    pub(super) cpus: Option<Spanned<Text<CpuList>>>,
    #[serde(default)]
    pub(super) steer: bool,
}
