//! Times and durations as people write them on the command line.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

/// The shortest grace of `scan`, as in the configuration.
const SHORTEST_GRACE: Duration = Duration::from_millis(100);

/// A duration as people write it.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| "not a duration: write it as 500ms, 30s or 1h30m".to_owned())
}

/// A moment of the past as people write it, in milliseconds since the Unix epoch.
pub(super) fn moment(text: &str) -> Result<i64, String> {
    moment_before(text, Timestamp::now()).ok_or_else(|| {
        "not a time: write it as 03:12, 2026-01-01T03:12:00Z or 10m (ago)".to_owned()
    })
}

fn moment_before(text: &str, now: Timestamp) -> Option<i64> {
    if let Ok(date) = text.parse::<Timestamp>() {
        return Some(date.as_millisecond());
    }
    // jiff would take 03:12:05 for a duration.
    if !text.contains(':') {
        let ago = i64::try_from(duration(text).ok()?.as_millis()).ok()?;
        return now.as_millisecond().checked_sub(ago);
    }
    let time: Time = text.strip_suffix('Z').unwrap_or(text).parse().ok()?;
    let today = TimeZone::UTC.to_datetime(now).date();
    let on = |day: Date| TimeZone::UTC.to_timestamp(day.to_datetime(time)).ok();
    let date = on(today).filter(|date| *date <= now).or_else(|| on(today.yesterday().ok()?))?;
    Some(date.as_millisecond())
}

/// A duration of a second at least.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| match duration.as_secs() {
        0 => Err("too short: a second at least, as 8h".to_owned()),
        _ => Ok(duration),
    })
}

/// Between two looks at a cluster.
pub(super) fn settle(text: &str) -> Result<Duration, String> {
    seconds(text).map_err(|error| error.replace("8h", "5s"))
}

/// A grace; two looks must fit into it.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    let grace = duration(text)?;
    if grace < SHORTEST_GRACE {
        return Err(format!("too short: {SHORTEST_GRACE:?} at least, as 2s"));
    }
    Ok(grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_people_write_them() {
        let now: Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
        let date = |text: &str| {
            let moment = moment_before(text, now)?;
            Some(Timestamp::from_millisecond(moment).unwrap().to_string())
        };
        for (text, is) in [
            ("2026-01-01T03:12:00Z", "2026-01-01T03:12:00Z"),
            ("02:59", "2026-01-02T02:59:00Z"),
            ("03:12", "2026-01-01T03:12:00Z"),
            ("03:12:05Z", "2026-01-01T03:12:05Z"),
            ("10m", "2026-01-02T02:50:00Z"),
        ] {
            assert_eq!(date(text).as_deref(), Some(is), "{text}");
        }
        for bad in ["", "noon", "25:00", "2026-01-01"] {
            assert!(moment(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn durations_as_people_write_them() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "5", "-3s", "5 parsecs"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
