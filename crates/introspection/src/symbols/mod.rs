//! Where functions and variables of a guest are.
//!
//! | module | owns |
//! | --- | --- |
//! | [`kallsyms`] | a kernel's own symbol table, found in memory |
//! | [`btf`] | where the members of its structures are |
//! | [`image`] | the ELF file of a guest that carries no symbols |

pub mod btf;
pub mod image;
pub mod kallsyms;
