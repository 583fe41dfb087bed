//! The guest systems that introspection knows.
//!
//! | module | owns |
//! | --- | --- |
//! | [`guest_os`] | the interface of guest systems |
//! | [`linux`] | stock Linux |
//! | [`freertos`] | FreeRTOS |
//! | [`segments`] | programs that mark where real-time work begins and ends |
//! | [`described`] | guest systems that files describe, added at run time |
//! | [`running_kernel`] | which of the kernels in memory runs |
//! | [`pulse`] | whether the introspected kernel still runs |

pub mod described;
pub mod freertos;
pub mod guest_os;
pub mod linux;
pub mod pulse;
mod reads;
pub mod running_kernel;
pub mod segments;
