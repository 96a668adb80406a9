//! Catches the panics of a simulation: a failed check of the simulator or a broken invariant of the engine.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;

use crate::plan::Scenario;

thread_local! {
    /// What this thread simulates.
    static RUNNING: Cell<Option<(Scenario, u64)>> = const { Cell::new(None) };
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `simulation`; a panic in it becomes an error with its message and place.
pub(crate) fn catch<T>(scenario: Scenario, seed: u64, simulation: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| note(info, &default)));
    });
    let outer = RUNNING.replace(Some((scenario, seed)));
    let result = catch_unwind(AssertUnwindSafe(simulation));
    RUNNING.set(outer);
    result.map_err(|_| MESSAGE.take().unwrap_or_else(|| "a panic without a message".to_owned()))
}

fn note(info: &PanicHookInfo<'_>, default: &dyn Fn(&PanicHookInfo<'_>)) {
    let Some((scenario, seed)) = RUNNING.get() else { return default(info) };
    let text = info.payload_as_str().unwrap_or("a panic without a text");
    let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
    let mut message = format!("{text}\n  at {place}");
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value == "full") {
        message.push_str(&format!("\n{}", std::backtrace::Backtrace::force_capture()));
    }
    if cfg!(panic = "abort") {
        // There is no way back: this is the last word.
        eprintln!("error: scenario {} failed: {message}\nhint: {}", scenario.name(), crate::reproduction(scenario, seed));
    }
    MESSAGE.with_borrow_mut(|first| {
        first.get_or_insert(message);
    });
}
