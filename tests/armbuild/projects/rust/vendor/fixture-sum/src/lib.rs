use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// The sum of the numbers below `n`, and how often it was asked for: an atomic, a panic and an allocation.
pub fn sum_below(n: u64) -> u64 {
    CALLS.fetch_add(1, Ordering::SeqCst);
    let numbers: Vec<f32> = (0..n).map(|value| value as f32).collect();
    assert!(numbers.len() < 1_000_000, "too many");
    numbers.iter().map(|value| value * 1.0).sum::<f32>() as u64
}

pub fn calls() -> u64 {
    CALLS.load(Ordering::SeqCst)
}
