//! Metric families in the making: a name, what it means, and a value for each set of labels.

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Names and values of labels.
pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Families in the order in which they are to be written.
#[derive(Default)]
pub(super) struct Families(Vec<MetricFamily>);

/// A histogram: how many fell below each bound, and all values together.
pub(super) struct Buckets<'a> {
    pub(super) bounds: &'a [f64],
    /// How many in each bucket alone.
    pub(super) counts: &'a [u64],
    pub(super) sum: f64,
}

impl Families {
    /// What only grows.
    pub(super) fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<f64>)>,
    ) {
        self.put(name, help, MetricType::COUNTER, rows, |metric, value| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        });
    }

    /// What goes up and down.
    pub(super) fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<f64>)>,
    ) {
        self.put(name, help, MetricType::GAUGE, rows, |metric, value| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        });
    }

    /// How values are distributed.
    pub(super) fn histogram<'a, 'b>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<Buckets<'b>>)>,
    ) {
        self.put(name, help, MetricType::HISTOGRAM, rows, |metric, Buckets { bounds, counts, sum }| {
            let mut below = 0;
            let bucket = |(bound, count): (&f64, &u64)| {
                below += count;
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(below);
                bucket
            };
            let mut histogram = Histogram::default();
            // The one without a bound is written by the encoder.
            let finite = bounds.iter().zip(counts).filter(|(bound, _)| bound.is_finite());
            histogram.set_bucket(finite.map(bucket).collect());
            histogram.set_sample_count(counts.iter().sum());
            histogram.set_sample_sum(sum);
            metric.set_histogram(histogram);
        });
    }

    /// Rows without a value are left out, and families without a row.
    fn put<'a, T>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<T>)>,
        set: impl Fn(&mut Metric, T),
    ) {
        let metric = |(labels, value): (Labels<'a>, Option<T>)| {
            let mut metric = Metric::from_label(labels.into_iter().map(pair).collect());
            set(&mut metric, value?);
            Some(metric)
        };
        let metrics: Vec<Metric> = rows.into_iter().filter_map(metric).collect();
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.0.push(family);
    }

    pub(super) fn as_slice(&self) -> &[MetricFamily] {
        &self.0
    }
}

fn pair((name, value): (&'static str, &str)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    #[test]
    fn families_are_written_with_help_and_type_and_buckets_add_up() {
        let mut families = Families::default();
        families.counter("a_total", "Counts \"a\".", [(vec![("device", "e\"0")], Some(2.0)), (vec![], None)]);
        families.gauge("none", "Nothing.", [(vec![], None)]);
        let buckets = Buckets { bounds: &[0.0, 1.0, f64::INFINITY], counts: &[3, 4, 5], sum: 9.5 };
        families.histogram("h", "Sizes.", [(vec![], Some(buckets))]);
        let text = TextEncoder::new().encode_to_string(families.as_slice()).expect("text");
        let expected = "# HELP a_total Counts \"a\".\n# TYPE a_total counter\na_total{device=\"e\\\"0\"} 2\n\
                        # HELP h Sizes.\n# TYPE h histogram\nh_bucket{le=\"0\"} 3\nh_bucket{le=\"1\"} 7\n\
                        h_bucket{le=\"+Inf\"} 12\nh_sum 9.5\nh_count 12\n";
        assert_eq!(text, expected);
    }
}
