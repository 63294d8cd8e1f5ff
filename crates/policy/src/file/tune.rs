//! Parses a `tune` table.

use std::path::Path;

use abey_config::Time;
use abey_delivery::Family;
use abey_tune::Bounds;
use toml::Spanned as TomlSpanned;

use super::Reader;
use super::tables::TuneTable;
use crate::error::PolicyError;
use crate::spanned::Spanned;
use crate::tune::Tune;

impl Reader<'_> {
    pub(super) fn tune(&self, table: TomlSpanned<TuneTable>) -> Result<Spanned<Tune>, PolicyError> {
        let (span, usual) = (table.span(), Bounds::default());
        let TuneTable { goal, gro_flush_timeout, irq_suspend_timeout, modes, latencies } = table.into_inner();
        let range = |given: Option<[Time; 2]>, usual| given.map_or(usual, |[low, high]| low.0..=high.0);
        let names_modes = modes.is_some();
        let families: Vec<Family> =
            modes.map_or_else(|| usual.families().to_vec(), |all| all.into_iter().map(|family| family.0).collect());
        let (flush, suspend) = (range(gro_flush_timeout, usual.flush()), range(irq_suspend_timeout, usual.suspend()));
        let bounds =
            Bounds::new(flush, suspend, &families).map_err(|error| self.wrong(span.clone(), &error.to_string()))?;
        if families.contains(&Family::FullBusy) {
            return Err(self.wrong(span, "a running program cannot be given fullbusy: leave it out of `modes`"));
        }
        if let Some(path) = latencies.as_ref().filter(|path| !Path::new(path.get_ref()).is_absolute()) {
            let message = "write the whole path of the file or FIFO, such as \"/run/memcached.latencies\"";
            return Err(self.wrong(path.span(), message));
        }
        let latencies = latencies.map(|path| path.into_inner().into());
        let value = Tune { goal: goal.0, bounds, names_modes, latencies };
        Ok(Spanned { value, origin: self.origin(span, "device.queues.tune") })
    }
}
