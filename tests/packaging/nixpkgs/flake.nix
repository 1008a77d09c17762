{
  description = "Stands for nixpkgs where there is none";
  outputs = _: { lib = import ./lib.nix; };
}
