"""Applications on the public names of the library: the gallery of `algonet demo`, the playground of `algonet play`."""
