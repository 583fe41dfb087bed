//! One clock for a cluster of hosts: a node asks another one a few times, has hard bounds after
//! milliseconds, and serves others at once. Pure: answers, questions and now come in, actions go out.
//!
//! | module | owns |
//! | --- | --- |
//! | [`facts`] | what a server's answers prove, however old they are |
//! | [`settle`] | when another question is not worth it any more |
//! | [`children`] | who asks us, and whom new ones are referred to |
//! | [`address`] | what counts as one host where some may lie |
//! | [`mesh`] | what several peers prove together, and who of them lies |
//! | [`succession`] | who begins the cluster's own timeline, and who continues it |
//! | [`horizon`] | until when bounds are good enough without asking anybody |
//! | [`wire`] | questions and answers as datagrams |
//! | [`node`] | [`node::Node`]: one node from its first question on |
//! | [`client`] | [`client::Client`]: the same with datagrams |
//!
//! Sources: the cold start and the tree of servers are section 4 and 5.5 of "High Precision Global
//! Clock" (HPGC), which states no error; the bounds are this project's (docs/explanation/bounds.md).
//! Its rule for the end of a burst (the deviation of round trips falls below a constant) is replaced
//! by [`settle`].
//!
//! **Intervals do not mind loops.** A bound is a set that holds the truth. What any peer says may be
//! intersected with what is known, in any order: a loop brings nothing new and nothing false. The
//! tree is for speed, the mesh for width and survival.
//!
//! What it does not do: send, receive, authenticate, read a counter, or steer a clock.

pub mod address;
pub mod children;
pub mod client;
pub mod facts;
pub mod horizon;
pub mod mesh;
pub mod node;
pub mod settle;
pub mod succession;
pub mod wire;
