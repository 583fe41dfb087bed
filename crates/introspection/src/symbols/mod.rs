//! The addresses of a guest's functions and variables, and the offsets in its structures.
//!
//! | module | owns |
//! | --- | --- |
//! | [`kallsyms`] | a Linux kernel's symbol table, found in memory |
//! | [`btf`] | the offsets in its structures |
//! | [`image`] | the ELF file of a guest that carries no symbols |
//! | `near.rs` | which name a misspelt one may mean |

pub mod btf;
pub mod image;
pub mod kallsyms;
mod near;
