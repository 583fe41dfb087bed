//! NTP through its public interface: captured packets, scripted servers, random event sequences;
//! client and server.

mod behaviour;
mod golden;
mod interleaved;
mod pairing;
mod polling;
mod precise;
mod random;
mod server;
mod serving;
