use proc_macro::TokenStream;

/// A procedural macro: rustc loads it on the build machine.
#[proc_macro]
pub fn answer(_input: TokenStream) -> TokenStream {
    "42u64".parse().unwrap()
}
