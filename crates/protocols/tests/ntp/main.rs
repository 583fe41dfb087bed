//! The NTP client through its public interface: captured packets, scripted servers, random event sequences.

mod behaviour;
mod golden;
mod random;
mod server;
