//! The shared library's name for the dynamic linker: it changes when old programs would not run any
//! more.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtimevisor.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
