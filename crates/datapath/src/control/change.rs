//! Changing settings over the control socket: checked whole, made, read back.

use abey_delivery::{EpollBusyPoll, ModeSettings, Nanos, NapiId, NapiSettings};

use super::protocol::{Change, Refusal, RefusalKind, SettingChange};
use super::settings::{BusyPoll, Napi};
use crate::error::{SetError, number};
use crate::runtime::Shared;

/// What is the epolls' and the sockets' of a runtime's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) epoll: Option<EpollBusyPoll>,
    pub(crate) max_wait: Option<Nanos>,
    pub(crate) socket_busy_poll: Option<Nanos>,
}

impl Waits {
    /// With the settings of an instance they are those that a mode has.
    pub(super) fn with(self, napi: NapiSettings) -> ModeSettings {
        let Self { epoll, max_wait, socket_busy_poll } = self;
        ModeSettings { napi, epoll, max_wait, socket_busy_poll }
    }
}

impl Shared {
    /// Makes a change, or says why not; in a dry run, only says what would change.
    pub(super) fn change(&self, change: &Change) -> Result<Vec<SettingChange>, Refusal> {
        let impossible = |error: SetError| Refusal::new(RefusalKind::Impossible, error);
        let ids = match &change.napis {
            None => self.shards.iter().map(|shard| shard.id).collect(),
            Some(napis) => {
                napis.iter().map(|napi| self.find(*napi)).collect::<Result<Vec<_>, _>>().map_err(impossible)?
            }
        };
        if ids.is_empty() || change.is_empty() {
            return Err(Refusal::new(RefusalKind::Impossible, "a change of nothing: name settings and instances"));
        }
        let waits = self.waits();
        let new_waits = match (change.all, &change.napis) {
            (Some(all), None) => {
                let ModeSettings { epoll, max_wait, socket_busy_poll, .. } = all.into();
                Waits { epoll, max_wait, socket_busy_poll }
            }
            _ => waits,
        };
        let wanted = self.wanted(change, &ids, new_waits).map_err(impossible)?;
        let mut changes: Vec<_> = wanted.iter().flat_map(|(id, old, new)| napi_changes(*id, *old, *new)).collect();
        changes.extend(wait_changes(waits, new_waits));
        if change.dry_run {
            return Ok(changes);
        }
        self.set(&ids, |settings| *settings = change.applied_to(*settings)).map_err(impossible)?;
        if new_waits != waits {
            self.set_waits(&new_waits.with(NapiSettings::default()));
        }
        self.read_back(&wanted, new_waits)?;
        Ok(changes)
    }

    /// What every instance has and shall have; nothing that makes no sense.
    fn wanted(
        &self,
        change: &Change,
        ids: &[NapiId],
        waits: Waits,
    ) -> Result<Vec<(NapiId, NapiSettings, NapiSettings)>, SetError> {
        let store = self.store();
        let mut wanted = Vec::with_capacity(ids.len());
        for id in ids {
            let old = *store.settings(*id).ok_or(SetError::NoSuchNapi(number(*id)))?;
            let new = change.applied_to(old);
            waits.with(new).validate()?;
            wanted.push((*id, old, new));
        }
        Ok(wanted)
    }

    fn read_back(&self, wanted: &[(NapiId, NapiSettings, NapiSettings)], waits: Waits) -> Result<(), Refusal> {
        let lost = |what: String| {
            Refusal::new(RefusalKind::NotTaken, format!("{what} has other settings than it was given: try again"))
        };
        for (id, _, new) in wanted {
            let shard = self.shards.iter().find(|shard| shard.id == *id);
            if shard.is_some_and(|shard| shard.view().settings != *new) {
                return Err(lost(format!("NAPI {}", number(*id))));
            }
        }
        if self.waits() != waits {
            return Err(lost("the runtime".to_owned()));
        }
        Ok(())
    }
}

fn napi_changes(id: NapiId, old: NapiSettings, new: NapiSettings) -> Vec<SettingChange> {
    let rows = |settings: NapiSettings| {
        let napi = Napi::from(settings);
        [
            ("defer-hard-irqs", napi.defer_hard_irqs.to_string()),
            ("gro-flush-timeout", settings.gro_flush_timeout.to_string()),
            ("irq-suspend-timeout", settings.irq_suspend_timeout.to_string()),
            ("threaded", napi.threaded.to_string()),
            ("hold", or_none(napi.hold)),
        ]
    };
    differing(Some(number(id)), rows(old), rows(new))
}

fn wait_changes(old: Waits, new: Waits) -> Vec<SettingChange> {
    let rows = |waits: Waits| {
        [
            ("busy-poll", or_none(waits.epoll.map(BusyPoll::from))),
            ("max-wait", or_none(waits.max_wait)),
            ("socket-busy-poll", or_none(waits.socket_busy_poll)),
        ]
    };
    differing(None, rows(old), rows(new))
}

fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn differing<const N: usize>(
    napi: Option<u32>,
    old: [(&'static str, String); N],
    new: [(&'static str, String); N],
) -> Vec<SettingChange> {
    let pairs = old.into_iter().zip(new).filter(|((_, before), (_, after))| before != after);
    pairs
        .map(|((setting, before), (_, after))| SettingChange { napi, setting: setting.to_owned(), before, after })
        .collect()
}
