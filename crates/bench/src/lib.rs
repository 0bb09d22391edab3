//! Scalability benchmarks of the Dominoes stack.
