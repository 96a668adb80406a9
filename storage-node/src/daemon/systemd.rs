//! Tells the service manager how the daemon is, by the protocol of `sd_notify(3)`: datagrams of `NAME=value` lines.
//!
//! Without a service manager all of it does nothing. A failed notification is logged, never fatal.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// As the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    pub(crate) fn from_environment() -> Self {
        let address = std::env::var_os("NOTIFY_SOCKET");
        let text = |name| std::env::var(name).ok();
        Self::new(address.as_deref(), text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref())
    }

    fn new(address: Option<&OsStr>, watchdog_usec: Option<&str>, watchdog_pid: Option<&str>) -> Self {
        let socket = address.filter(|address| !address.is_empty()).and_then(|address| match connect(address) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(socket = %address.to_string_lossy(), %error, "the service manager can't be told about this process");
                None
            }
        });
        let for_us = watchdog_pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let watchdog =
            watchdog_usec.and_then(|text| text.parse().ok()).filter(|usec| for_us && *usec > 0).map(Duration::from_micros);
        Self { watchdog: watchdog.filter(|_| socket.is_some()), socket }
    }

    /// How often it expects a sign of life.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// All shards serve.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// What the process does now, for `systemctl status`.
    pub(crate) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// The drain has begun.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining");
    }

    /// A sign of life.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, "the service manager can't be told about this process");
        }
    }
}

fn connect(address: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        // systemd writes abstract addresses with @ for their leading zero byte.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not hold up the control thread.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_an_abstract_socket_in_the_protocols_form() {
        let name = format!("roostd-test-{}", std::process::id());
        let server = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager =
            ServiceManager::new(Some(OsStr::new(&format!("@{name}"))), Some("3000000"), Some(&std::process::id().to_string()));
        assert_eq!(manager.watchdog(), Some(Duration::from_secs(3)));
        manager.ready("serving");
        manager.alive();
        manager.stopping();
        let mut buffer = [0; 256];
        for expected in ["READY=1\nSTATUS=serving", "WATCHDOG=1", "STOPPING=1\nSTATUS=draining"] {
            let length = server.recv(&mut buffer).unwrap();
            assert_eq!(std::str::from_utf8(&buffer[..length]), Ok(expected));
        }
    }

    #[test]
    fn without_a_socket_or_for_another_process_there_is_no_watchdog() {
        assert_eq!(ServiceManager::new(None, Some("3000000"), None).watchdog(), None);
        let name = OsStr::new("@roostd-test-nobody");
        assert_eq!(ServiceManager::new(Some(name), Some("3000000"), Some("1")).watchdog(), None);
        assert_eq!(ServiceManager::new(Some(name), Some("0"), None).watchdog(), None);
        assert_eq!(ServiceManager::new(Some(name), Some("3000000"), None).watchdog(), Some(Duration::from_secs(3)));
    }
}
