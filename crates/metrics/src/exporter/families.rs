//! A builder of metric families: name, help text, and a value for each set of labels.

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Label names and values.
pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Metric families, in the order of the output.
#[derive(Default)]
pub(super) struct Families(Vec<MetricFamily>);

/// A histogram: counts by bucket, and the sum of all values.
pub(super) struct Buckets<'a> {
    pub(super) bounds: &'a [f64],
    /// The count of each bucket, not cumulative.
    pub(super) counts: &'a [u64],
    pub(super) sum: f64,
}

impl Families {
    /// Adds a family of counters.
    pub(super) fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<f64>)>,
    ) {
        self.push(name, help, MetricType::COUNTER, rows, |metric, value| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        });
    }

    /// Adds a family of gauges.
    pub(super) fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<f64>)>,
    ) {
        self.push(name, help, MetricType::GAUGE, rows, |metric, value| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        });
    }

    /// Adds a family of histograms.
    pub(super) fn histogram<'a, 'b>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<Buckets<'b>>)>,
    ) {
        self.push(name, help, MetricType::HISTOGRAM, rows, |metric, Buckets { bounds, counts, sum }| {
            let mut below = 0;
            let bucket = |(bound, count): (&f64, &u64)| {
                below += count;
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(below);
                bucket
            };
            let mut histogram = Histogram::default();
            // The encoder writes the infinite bucket itself.
            let finite = bounds.iter().zip(counts).filter(|(bound, _)| bound.is_finite());
            histogram.set_bucket(finite.map(bucket).collect());
            histogram.set_sample_count(counts.iter().sum());
            histogram.set_sample_sum(sum);
            metric.set_histogram(histogram);
        });
    }

    /// Adds a family of the rows that have a value, if there are any.
    fn push<'a, T>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        rows: impl IntoIterator<Item = (Labels<'a>, Option<T>)>,
        set: impl Fn(&mut Metric, T),
    ) {
        let metric = |(labels, value): (Labels<'a>, Option<T>)| {
            let mut metric = Metric::from_label(labels.into_iter().map(label).collect());
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

fn label((name, value): (&'static str, &str)) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    #[test]
    fn families_have_help_and_type_and_cumulative_buckets() {
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
