//! Changing settings over the control socket: the change is validated as a whole, applied, and read back.

use abey_delivery::{NapiId, NapiSetting, NapiSettings};

use super::protocol::{Change, Refusal, RefusalKind, SettingChange};
use crate::error::SetError;
use crate::host::WaitSettings;
use crate::runtime::state::RuntimeState;

/// The settings of an instance before and after a change.
struct NapiChange {
    id: NapiId,
    old: NapiSettings,
    new: NapiSettings,
}

/// Applies a change, or returns why that is not possible. A dry run returns what would change.
pub(super) fn apply(state: &RuntimeState, change: &Change) -> Result<Vec<SettingChange>, Refusal> {
    let impossible = |error: SetError| Refusal::new(RefusalKind::Impossible, error);
    let ids = match &change.napis {
        None => state.host.shards().iter().map(|shard| shard.id).collect(),
        Some(napis) => napis.iter().map(|napi| state.find(*napi)).collect::<Result<Vec<_>, _>>().map_err(impossible)?,
    };
    if ids.is_empty() || change.is_empty() {
        return Err(Refusal::new(RefusalKind::Impossible, "the change is empty: name settings and instances"));
    }
    let waits = state.host.wait_settings();
    let new_waits = match (change.all, &change.napis) {
        (Some(all), None) => WaitSettings::from(&all),
        _ => waits,
    };
    let napis = plan(state, change, &ids, new_waits).map_err(impossible)?;
    let mut changes: Vec<_> = napis.iter().flat_map(napi_changes).collect();
    changes.extend(wait_changes(waits, new_waits));
    if change.dry_run {
        return Ok(changes);
    }
    state.set(&ids, |settings| *settings = change.applied_to(*settings)).map_err(impossible)?;
    if new_waits != waits {
        state.set_waits(&new_waits.with(NapiSettings::default()));
    }
    read_back(state, &napis, new_waits)?;
    Ok(changes)
}

/// Returns the validated changes of every instance.
fn plan(
    state: &RuntimeState,
    change: &Change,
    ids: &[NapiId],
    waits: WaitSettings,
) -> Result<Vec<NapiChange>, SetError> {
    let store = state.store();
    let mut changes = Vec::with_capacity(ids.len());
    for id in ids {
        let old = *store.settings(*id).ok_or(SetError::NoSuchNapi(id.get()))?;
        let new = change.applied_to(old);
        waits.with(new).validate()?;
        changes.push(NapiChange { id: *id, old, new });
    }
    Ok(changes)
}

/// Checks that the settings are in effect.
fn read_back(state: &RuntimeState, napis: &[NapiChange], waits: WaitSettings) -> Result<(), Refusal> {
    let differs = |what: String| {
        Refusal::new(RefusalKind::NotTaken, format!("{what} has other settings than those that were set: try again"))
    };
    for NapiChange { id, new, .. } in napis {
        let shard = state.host.shards().iter().find(|shard| shard.id == *id);
        if shard.is_some_and(|shard| shard.view().settings != *new) {
            return Err(differs(format!("NAPI {}", id.get())));
        }
    }
    if state.host.wait_settings() != waits {
        return Err(differs("the runtime".to_owned()));
    }
    Ok(())
}

fn napi_changes(change: &NapiChange) -> Vec<SettingChange> {
    let named = |settings| NapiSetting::ALL.map(|setting| (setting.name(), setting.get(&settings).to_string()));
    differing(Some(change.id.get()), named(change.old), named(change.new))
}

fn wait_changes(old: WaitSettings, new: WaitSettings) -> Vec<SettingChange> {
    let named = |waits: WaitSettings| {
        let WaitSettings { epoll, max_wait, socket_busy_poll } = waits;
        [
            ("busy-poll", or_none(epoll)),
            ("max-wait", or_none(max_wait)),
            ("socket-busy-poll", or_none(socket_busy_poll)),
        ]
    };
    differing(None, named(old), named(new))
}

fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

/// Returns the settings with different values.
fn differing<const N: usize>(
    napi: Option<u32>,
    old: [(&'static str, String); N],
    new: [(&'static str, String); N],
) -> Vec<SettingChange> {
    let both = old.into_iter().zip(new).filter(|((_, before), (_, after))| before != after);
    both.map(|((setting, before), (_, after))| SettingChange { napi, setting: setting.to_owned(), before, after })
        .collect()
}
