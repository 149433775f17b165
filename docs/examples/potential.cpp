// Energy and forces of a molecule from a model that `weft export RUN model.pt2` wrote; without weft.
//   ./potential model.pt2 < molecule.txt      a line for each atom: atomic number, x, y, z in Å
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <limits>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return std::cerr << "usage: potential model.pt2 < molecule.txt\n", 2;
  // Or tensors of another dtype or stride would give wrong numbers without a word.
  setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 0);
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  const auto about = model.get_metadata();
  const double cutoff = about.count("cutoff") ? std::stod(about.at("cutoff"))
                                              : std::numeric_limits<double>::infinity();
  std::vector<int64_t> z;
  std::vector<double> pos;
  double x, y, w;
  for (int64_t number; std::cin >> number >> x >> y >> w;) {
    z.push_back(number);
    pos.insert(pos.end(), {x, y, w});
  }
  const auto atoms = static_cast<int64_t>(z.size());
  const auto real = at::kDouble;
  const auto places = at::tensor(pos, real).view({atoms, 3});
  // Every pair both ways; a large system needs a neighbour list.
  const auto near = at::cdist(places, places) < cutoff;
  const auto edges = (near & ~at::eye(atoms, at::kBool)).nonzero().t().contiguous();
  // In the order of the metadata's "inputs": z, pos, edge_index, shift, batch, cell.
  const auto found = model.run({at::tensor(z, at::kLong), places, edges,
                                at::zeros({edges.size(1), 3}, real),
                                at::zeros({atoms}, at::kLong), at::zeros({1, 3, 3}, real)});
  std::cout << std::setprecision(12) << found[0].item<double>() << "\n";
  if (about.at("outputs").find("forces") == std::string::npos) return 0;
  for (int64_t atom = 0; atom < atoms; ++atom)
    std::cout << found[1][atom][0].item<double>() << " " << found[1][atom][1].item<double>() << " "
              << found[1][atom][2].item<double>() << "\n";
}
