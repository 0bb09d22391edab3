//! The frame of benches whose rows take turns: in each round every row is measured once.
//!
//! Rows that are compared are measured within a second or so, whatever the machine does meanwhile.
//! A [`Reading`] records whether the machine was calm. Figures use the calm readings if there are
//! any, else all.

use crate::spread::Spread;

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Reading<T> {
    /// The value.
    pub value: T,
    /// Whether nothing else disturbed the machine.
    pub is_calm: bool,
}

impl<T> Reading<T> {
    /// A reading of a bench that does not watch the machine.
    pub fn calm(value: T) -> Reading<T> {
        let is_calm = true;
        Reading { value, is_calm }
    }
}

/// Measures every row once in each round; every other round runs the rows in reverse. Returns the
/// readings by row, then by round. `measure` takes the row and the number of the round; `progress`
/// takes the number of finished rounds and of all rounds.
pub fn by_turns<R, T, E>(
    rows: &mut [R],
    rounds: usize,
    progress: &mut dyn FnMut(usize, usize),
    mut measure: impl FnMut(&mut R, usize) -> Result<Reading<T>, E>,
) -> Result<Vec<Vec<Reading<T>>>, E> {
    let mut readings: Vec<Vec<Reading<T>>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        progress(round, rounds);
        for place in 0..rows.len() {
            let row = match round % 2 {
                0 => place,
                _ => rows.len() - 1 - place,
            };
            readings[row].push(measure(&mut rows[row], round)?);
        }
    }
    progress(rounds, rounds);
    Ok(readings)
}

/// Prints the number of finished rounds to the standard error stream.
pub fn tell(done: usize, of: usize) {
    if done > 0 {
        eprintln!("round {done} of {of}");
    }
}

/// Repeats a measurement while the machine is disturbed, up to `attempts` in all. Returns the last
/// reading and the number of repetitions.
pub fn until_calm<T, E>(
    attempts: usize,
    mut measure: impl FnMut() -> Result<Reading<T>, E>,
) -> Result<(Reading<T>, usize), E> {
    let mut again = 0;
    loop {
        let reading = measure()?;
        if reading.is_calm || again + 1 >= attempts {
            return Ok((reading, again));
        }
        again += 1;
    }
}

/// The values of calm readings, and how many readings are left out. If no reading is calm, all
/// values and `None`.
pub fn kept<T>(readings: &[Reading<T>]) -> (Vec<&T>, Option<usize>) {
    let calm = readings.iter().filter(|reading| reading.is_calm);
    let calm: Vec<&T> = calm.map(|reading| &reading.value).collect();
    match calm.is_empty() {
        true => (readings.iter().map(|r| &r.value).collect(), None),
        false => {
            let left_out = readings.len() - calm.len();
            (calm, Some(left_out))
        }
    }
}

/// Median and quartiles of the [`kept`] values; `None` if there are none.
pub fn spread(readings: &[Reading<f64>]) -> Option<Spread> {
    Spread::of(kept(readings).0.into_iter().copied())
}

/// The one by the other, round by round; calm where both are.
pub fn over(one: &[Reading<f64>], other: &[Reading<f64>]) -> Vec<Reading<f64>> {
    let ratio = |(one, other): (&Reading<f64>, &Reading<f64>)| Reading {
        value: one.value / other.value,
        is_calm: one.is_calm && other.is_calm,
    };
    one.iter().zip(other).map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(value: f64, is_calm: bool) -> Reading<f64> {
        Reading { value, is_calm }
    }

    #[test]
    fn the_order_of_rows_turns_from_round_to_round() {
        let mut order = Vec::new();
        let readings = by_turns(&mut ["a", "b"], 2, &mut |_, _| (), |row, round| {
            order.push(*row);
            Ok::<_, ()>(Reading::calm((*row, round)))
        });
        assert_eq!(order, ["a", "b", "b", "a"]);
        assert_eq!(readings.unwrap()[1][1].value, ("b", 1));
    }

    #[test]
    fn a_disturbed_reading_is_taken_again_and_left_out() {
        let mut attempts = 0;
        let mut measure = || {
            attempts += 1;
            Ok::<_, ()>(reading(f64::from(attempts), attempts == 3))
        };
        assert_eq!(until_calm(8, &mut measure), Ok((reading(3.0, true), 2)));
        assert_eq!(until_calm(2, &mut measure), Ok((reading(5.0, false), 1)));

        let mixed = [reading(2.0, true), reading(9.0, false)];
        assert_eq!(kept(&mixed), (vec![&2.0], Some(1)));
        assert_eq!(kept(&mixed[1..]), (vec![&9.0], None));
        let ones = [reading(1.0, true), reading(1.0, true)];
        assert_eq!(spread(&over(&mixed, &ones)).unwrap().median, 2.0);
    }
}
