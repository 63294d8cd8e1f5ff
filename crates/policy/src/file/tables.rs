//! The tables of the file as TOML has them.

use std::collections::BTreeSet;

use abey_config::{EpollTable, NapiTable, Time};
use abey_delivery::Family;
use abey_linux::cpu::{CpuList, SchedulingPolicy};
use abey_tune::Goal;
use glob::Pattern;
use serde::Deserialize;
use toml::Spanned as TomlSpanned;

use crate::model::OnUnsupported;
use crate::value::{CpuChoice, KernelMode, Mac, Port, Queues, Text};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Document {
    pub(super) version: TomlSpanned<u32>,
    pub(super) on_unsupported: Option<TomlSpanned<OnUnsupported>>,
    #[serde(default)]
    pub(super) device: Vec<TomlSpanned<DeviceTable>>,
    #[serde(default)]
    pub(super) program: Vec<TomlSpanned<ProgramTable>>,
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
    pub(super) channels: Option<TomlSpanned<u32>>,
    pub(super) rss: Option<TomlSpanned<Text<BTreeSet<u32>>>>,
    pub(super) mode: Option<TomlSpanned<Text<KernelMode>>>,
    pub(super) settings: Option<TomlSpanned<NapiTable>>,
    #[serde(default)]
    pub(super) queues: Vec<QueueTable>,
    #[serde(default)]
    pub(super) flows: Vec<FlowTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct QueueTable {
    pub(super) queues: TomlSpanned<Text<Queues>>,
    pub(super) mode: Option<TomlSpanned<Text<KernelMode>>>,
    pub(super) settings: Option<TomlSpanned<NapiTable>>,
    pub(super) ports: Option<TomlSpanned<Vec<Text<Port>>>>,
    pub(super) irq_cpus: Option<TomlSpanned<Text<CpuChoice>>>,
    pub(super) xps_cpus: Option<TomlSpanned<Text<CpuChoice>>>,
    pub(super) thread: Option<TomlSpanned<ThreadTable>>,
    pub(super) tune: Option<TomlSpanned<TuneTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct TuneTable {
    pub(super) goal: Text<Goal>,
    pub(super) gro_flush_timeout: Option<[Time; 2]>,
    pub(super) irq_suspend_timeout: Option<[Time; 2]>,
    pub(super) modes: Option<Vec<Text<Family>>>,
    pub(super) latencies: Option<TomlSpanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct FlowTable {
    pub(super) ports: TomlSpanned<Vec<Text<Port>>>,
    pub(super) queues: TomlSpanned<Text<BTreeSet<u32>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ThreadTable {
    pub(super) cpus: Option<Text<CpuChoice>>,
    pub(super) policy: Option<Text<SchedulingPolicy>>,
    pub(super) priority: Option<TomlSpanned<u8>>,
    pub(super) nice: Option<TomlSpanned<i8>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ProgramTable {
    pub(super) unit: Option<TomlSpanned<String>>,
    pub(super) executable: Option<TomlSpanned<String>>,
    pub(super) device: Option<TomlSpanned<Text<Pattern>>>,
    pub(super) queues: Option<TomlSpanned<Text<BTreeSet<u32>>>>,
    pub(super) mode: Option<TomlSpanned<Text<KernelMode>>>,
    pub(super) epoll: Option<TomlSpanned<EpollTable>>,
    pub(super) cpus: Option<TomlSpanned<Text<CpuList>>>,
    #[serde(default)]
    pub(super) steer: bool,
}
