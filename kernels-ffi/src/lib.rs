//! kernels-ffi
