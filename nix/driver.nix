# What a GPU process needs on NixOS, where there is no ld cache, no /sbin/ldconfig and no compiler on PATH: the driver's
# libraries under /run/opengl-driver, and the programs that Triton starts. Used by the package's wrapper and the module.
{ pkgs }:
let
  libraries = "/run/opengl-driver/lib";
in
{
  inherit libraries;
  environment = {
    # Triton links its launchers against libcuda from here instead of asking ldconfig.
    TRITON_LIBCUDA_PATH = libraries;
    # dlopen of a bare name, by torch and NVML, looks here first.
    LD_LIBRARY_PATH = libraries;
    CC = "${pkgs.stdenv.cc}/bin/cc";
    TRITON_PTXAS_PATH = "${pkgs.cudaPackages.cuda_nvcc}/bin/ptxas";
  };
}
