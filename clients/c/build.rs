//! The shared library's name for the dynamic linker: it changes when old programs would not run any
//! more. Once loaded it stays: its thread and its handler of SIGBUS may run later than dlclose.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtimevisor.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
