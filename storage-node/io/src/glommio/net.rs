//! TCP over glommio's unbuffered streams: bytes go straight between the socket and the caller's buffers.
//!
//! A stream's two sides share one socket; each borrows it for the time of a poll only. Nothing is read ahead, so a
//! socket can be handed to another executor between two reads. A socket is shut down when its last side is dropped: glommio
//! may have a poll of it in the kernel still, which would keep the connection open past the close.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;

use ::glommio::net::{TcpListener, TcpStream};
use futures_util::io::{AsyncRead, AsyncWrite};
use nix::sys::socket::{self, Backlog, sockopt};

use super::file::plain_error;
use crate::{Listener, ReadHalf, Stream, WriteHalf};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

struct Connection {
    /// `None` once the socket was handed over.
    stream: RefCell<Option<TcpStream>>,
    peer: SocketAddr,
}

const NOT_HANDED_OVER: &str = "only a whole stream is handed over, and it is gone then";

impl Connection {
    fn poll<T>(&self, action: impl FnOnce(Pin<&mut TcpStream>) -> T) -> T {
        action(Pin::new(self.stream.borrow_mut().as_mut().expect(NOT_HANDED_OVER)))
    }

    fn shut_down(&self) -> io::Result<()> {
        let stream = self.stream.borrow();
        let Some(stream) = &*stream else { return Ok(()) };
        match socket::shutdown(stream.as_raw_fd(), socket::Shutdown::Both) {
            // The peer has closed it already.
            Ok(()) | Err(nix::errno::Errno::ENOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // It is closed next; there is nobody to tell.
        let _ = self.shut_down();
    }
}

/// A TCP connection.
pub struct GlommioStream(Rc<Connection>);

/// The reading side of a [`GlommioStream`].
pub struct GlommioReadHalf(Rc<Connection>);

/// The writing side of a [`GlommioStream`].
pub struct GlommioWriteHalf(Rc<Connection>);

/// A TCP connection off any executor, on its way to another thread.
#[derive(Debug)]
pub struct GlommioSocket {
    /// An error of taking it off its executor is reported where it is adopted.
    socket: io::Result<OwnedFd>,
    peer: SocketAddr,
}

impl From<std::net::TcpStream> for GlommioSocket {
    fn from(stream: std::net::TcpStream) -> Self {
        match stream.peer_addr() {
            Ok(peer) => Self { socket: Ok(stream.into()), peer },
            Err(error) => Self { socket: Err(error), peer: SocketAddr::from(([0, 0, 0, 0], 0)) },
        }
    }
}

impl Stream for GlommioStream {
    type Read = GlommioReadHalf;
    type Write = GlommioWriteHalf;
    type Socket = GlommioSocket;

    fn into_split(self) -> (GlommioReadHalf, GlommioWriteHalf) {
        (GlommioReadHalf(self.0.clone()), GlommioWriteHalf(self.0))
    }

    /// # Panics
    /// If they are sides of different connections.
    fn reunite(read: GlommioReadHalf, write: GlommioWriteHalf) -> Self {
        assert!(Rc::ptr_eq(&read.0, &write.0), "these are sides of different connections");
        Self(read.0)
    }

    fn into_socket(self) -> GlommioSocket {
        let stream = self.0.stream.borrow_mut().take().expect(NOT_HANDED_OVER);
        // SAFETY: the stream keeps the descriptor open until after this call.
        #[expect(unsafe_code)]
        let borrowed = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
        GlommioSocket { socket: borrowed.try_clone_to_owned(), peer: self.0.peer }
    }

    fn peer(&self) -> SocketAddr {
        self.0.peer
    }
}

pub(super) fn adopt(socket: GlommioSocket) -> io::Result<GlommioStream> {
    let descriptor = socket.socket?;
    socket::setsockopt(&descriptor, sockopt::TcpNoDelay, &true)?;
    // SAFETY: the descriptor is owned, and given away here.
    #[expect(unsafe_code)]
    let stream = unsafe { TcpStream::from_raw_fd(descriptor.into_raw_fd()) };
    Ok(GlommioStream(Rc::new(Connection { stream: RefCell::new(Some(stream)), peer: socket.peer })))
}

fn wrap(stream: TcpStream) -> io::Result<GlommioStream> {
    stream.set_nodelay(true).map_err(plain_error)?;
    let peer = stream.peer_addr().map_err(plain_error)?;
    Ok(GlommioStream(Rc::new(Connection { stream: RefCell::new(Some(stream)), peer })))
}

impl ReadHalf for GlommioReadHalf {
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        poll_fn(|context| self.0.poll(|stream| stream.poll_read(context, buf))).await
    }
}

impl WriteHalf for GlommioWriteHalf {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match poll_fn(|context| self.0.poll(|stream| stream.poll_write(context, rest))).await {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.0.shut_down()
    }
}

/// Waits for TCP connections.
pub struct GlommioListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener for GlommioListener {
    type Stream = GlommioStream;

    async fn accept(&self) -> io::Result<GlommioStream> {
        loop {
            let stream = self.listener.accept().await.map_err(plain_error)?;
            match wrap(stream) {
                // The peer has gone while it waited to be accepted: no concern of the caller.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::InvalidInput) => {}
                result => return result,
            }
        }
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }
}

pub(super) fn listen(address: SocketAddr) -> io::Result<GlommioListener> {
    // Std's listener takes an address over from a dead process, but not from a living one, unlike glommio's.
    let listener = std::net::TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    socket::listen(&listener, Backlog::new(BACKLOG)?)?;
    // SAFETY: the descriptor is owned, and given away here.
    #[expect(unsafe_code)]
    let listener = unsafe { TcpListener::from_raw_fd(listener.into_raw_fd()) };
    Ok(GlommioListener { listener, address })
}

pub(super) async fn connect(address: SocketAddr) -> io::Result<GlommioStream> {
    wrap(TcpStream::connect(address).await.map_err(plain_error)?)
}
