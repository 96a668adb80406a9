//! What is printed and written: pure functions from results to text.

mod hgrm;
mod json;
mod normal;
mod numbers;

pub(crate) use hgrm::distributions;
pub(crate) use json::json;
pub(crate) use normal::normal;

#[cfg(test)]
mod tests;
