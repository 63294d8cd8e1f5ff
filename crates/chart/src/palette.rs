//! One fixed colour and marker per mode, the same in every chart.
//!
//! A family of modes, such as all `suspendX`, shares a hue and a marker. The number in the mode's name sets the lightness and
//! the dashes. Hues keep the distances of Okabe and Ito's colour-blind-safe set. Markers and labels at the lines carry the
//! same information without colour.

use abey_delivery::{Hold, Mode, Nanos};

/// A colour as red, green and blue.
type Rgb = [u8; 3];

/// The shape of a mode's points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A filled circle.
    Circle,
    /// A filled square.
    Square,
    /// A triangle that points up.
    Up,
    /// A triangle that points down.
    Down,
    /// A square on its corner.
    Diamond,
    /// A diagonal cross.
    Cross,
}

/// Class, colours, dashes and marker of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeStyle {
    /// Class name, safe in HTML and CSS.
    pub class: String,
    /// The mode's name.
    pub name: String,
    light: Rgb,
    dark: Rgb,
    dash: &'static str,
    /// The shape of its points.
    pub marker: Marker,
}

impl ModeStyle {
    /// Returns the style of a mode, which depends on the mode alone.
    #[must_use]
    pub fn of(mode: Mode) -> Self {
        use Marker::{Circle, Cross, Diamond, Down, Square, Up};
        let (light, dark, marker, span) = match mode {
            Mode::Base => ([0x55, 0x5b, 0x63], [0xb4, 0xbb, 0xc4], Circle, None),
            Mode::Defer(span) => ([0xb8, 0x6e, 0x00], [0xf0, 0xa8, 0x3c], Square, Some((span, 50))),
            Mode::NapiBusy => ([0xb0, 0x4a, 0x8c], [0xe8, 0x93, 0xc4], Up, None),
            Mode::FullBusy => ([0xc8, 0x3c, 0x00], [0xff, 0x7d, 0x4d], Down, None),
            Mode::Suspend(span) => ([0x00, 0x66, 0xb8], [0x5c, 0xb3, 0xff], Diamond, Some((span, 20))),
            Mode::Threaded => ([0x00, 0x80, 0x5c], [0x2f, 0xcc, 0x9c], Cross, None),
            Mode::ThreadedBusy => ([0x5e, 0x80, 0x00], [0xb4, 0xd4, 0x4a], Square, None),
            Mode::Workqueue => ([0x7a, 0x55, 0x36], [0xcc, 0xa6, 0x84], Up, None),
            Mode::Hold(Hold::Spin(span)) => ([0x00, 0x80, 0x99], [0x56, 0xc8, 0xe0], Down, Some((span, 50))),
            Mode::Hold(Hold::Timer(span)) => ([0x3d, 0x6b, 0x8f], [0x9c, 0xc4, 0xe6], Circle, Some((span, 50))),
            Mode::SockBusy(span) => ([0x69, 0x50, 0xc0], [0xb2, 0xa2, 0xff], Cross, Some((span, 50))),
            _ => ([0x80, 0x80, 0x80], [0x99, 0x99, 0x99], Circle, None),
        };
        let step = span.map_or(0, |(span, usual)| step(span, usual));
        let dash = ["", "26 9", "12 9", "4 8"][step.unsigned_abs().min(3) as usize];
        let name = mode.to_string();
        let class = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>();
        Self { class: format!("m-{class}"), name, light: shade(light, step), dark: shade(dark, step), dash, marker }
    }

    /// Returns the style of a mode in a chart that overlays worlds: the mode's colour, with the dashes and fill of the class
    /// `w-WORLD`.
    #[must_use]
    pub fn in_world(mode: Mode, world: &str) -> Self {
        let style = Self::of(mode);
        Self { class: format!("{} w-{world}", style.class), name: format!("{mode} {world}"), ..style }
    }

    /// Returns the CSS rule of the mode's class on a light background.
    #[must_use]
    pub fn light_css(&self) -> String {
        let dash = if self.dash.is_empty() { "none" } else { self.dash };
        format!(".{}{{--c:{};--dash:{dash}}}", self.class, hex(self.light))
    }

    /// Returns the CSS rule of the mode's class on a dark background.
    #[must_use]
    pub fn dark_css(&self) -> String {
        format!(".{}{{--c:{}}}", self.class, hex(self.dark))
    }
}

/// Returns the distance of a time from the family's usual one, in steps of a factor of about 2.5, from -2 to 2.
fn step(span: Nanos, usual: u64) -> i32 {
    let ratio = span.as_nanos() as f64 / (usual * 1_000) as f64;
    (ratio.log2() / 1.3).round().clamp(-2.0, 2.0) as i32
}

/// Darkens a colour for a negative step and lightens it for a positive one; all results are readable on either background.
fn shade(colour: Rgb, step: i32) -> Rgb {
    let (towards, share) = if step < 0 { (0.0, 0.16) } else { (255.0, 0.09) };
    let share = share * f64::from(step.unsigned_abs());
    colour.map(|channel| (f64::from(channel) * (1.0 - share) + towards * share).round() as u8)
}

fn hex([red, green, blue]: Rgb) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

impl Marker {
    /// Returns the outline of the marker around a point as SVG path data; `r` is about half its width.
    #[must_use]
    pub fn path(self, (x, y): (f64, f64), r: f64) -> String {
        let (half, wide) = (r * 0.86, r * 1.15);
        let polygon = |points: &[(f64, f64)]| {
            let points: Vec<String> = points.iter().map(|(dx, dy)| format!("{:.1} {:.1}", x + dx, y + dy)).collect();
            format!("M{}Z", points.join("L"))
        };
        match self {
            Self::Circle => {
                format!("M{:.1} {y:.1}a{r:.1} {r:.1} 0 1 0 {d:.1} 0a{r:.1} {r:.1} 0 1 0 -{d:.1} 0Z", x - r, d = 2.0 * r)
            }
            Self::Square => polygon(&[(-half, -half), (half, -half), (half, half), (-half, half)]),
            Self::Up => polygon(&[(0.0, -wide), (wide, half), (-wide, half)]),
            Self::Down => polygon(&[(0.0, wide), (wide, -half), (-wide, -half)]),
            Self::Diamond => polygon(&[(0.0, -1.2 * r), (1.2 * r, 0.0), (0.0, 1.2 * r), (-1.2 * r, 0.0)]),
            Self::Cross => {
                let (a, b) = (r, r * 0.42);
                polygon(&[
                    (-a, -a + b),
                    (-a + b, -a),
                    (0.0, -b),
                    (a - b, -a),
                    (a, -a + b),
                    (b, 0.0),
                    (a, a - b),
                    (a - b, a),
                    (0.0, b),
                    (-a + b, a),
                    (-a, a - b),
                    (-b, 0.0),
                ])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the contrast ratio, from the relative luminance, as WCAG 2 defines them.
    fn contrast(a: Rgb, b: Rgb) -> f64 {
        let luminance = |colour: Rgb| {
            let [r, g, b] = colour.map(|channel| {
                let share = f64::from(channel) / 255.0;
                if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
            });
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_mode_is_readable_on_both_backgrounds_and_unique() {
        let names = ["defer10", "defer20", "defer200", "suspend10", "suspend50", "suspend200", "hold4ms", "sockbusy10"];
        let mut seen: Vec<ModeStyle> = Vec::new();
        for name in Mode::EXAMPLES.into_iter().chain(names) {
            let style = ModeStyle::of(name.parse().expect(name));
            assert!(contrast(style.light, [0xff, 0xff, 0xff]) >= 3.0, "{name} on white");
            assert!(contrast(style.dark, [0x17, 0x1a, 0x1f]) >= 3.0, "{name} on dark");
            for other in &seen {
                assert_ne!(style.light, other.light, "{name} and {}", other.name);
                assert_ne!(style.class, other.class);
            }
            seen.push(style);
        }
    }

    #[test]
    fn a_mode_name_with_a_unit_makes_a_single_class() {
        assert_eq!(ModeStyle::of("suspend1500ns".parse().expect("a mode")).class.split('.').count(), 1);
    }
}
