// A rank that works with files of weights.
//   fsdp-run -n N torch_rank checkpoint train FOLDER OPTIMIZER FROM TO TAG     (exact_training.h)
//   torch_rank checkpoint write FOLDER UNITS    model.pt, transposed.pt and model.safetensors
//   fsdp-run -n N torch_rank checkpoint load FILE UNITS    prints the most a rank's memory grows by
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>
#include <torch/serialize.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/support/exact_training.h"
#include "torch_rank.h"

namespace {

constexpr int64_t kRows = 1024, kColumns = 4096;  // 16 MiB a unit

at::Tensor values_of_unit(int64_t unit) {
  return at::arange(kRows * kColumns, at::kFloat).remainder_(1000).add_(unit);
}

struct SlabImpl : torch::nn::Module {
  // If `filled`, the tensor has values. If `transposed`, it is column-major in memory.
  SlabImpl(int64_t unit, bool filled, bool transposed) {
    const std::vector<int64_t> strides =
        transposed ? std::vector<int64_t>{1, kRows} : std::vector<int64_t>{kColumns, 1};
    weight = register_parameter("weight", at::empty_strided({kRows, kColumns}, strides).zero_());
    const at::NoGradGuard no_grad;
    if (filled) weight.copy_(values_of_unit(unit).reshape({kRows, kColumns}));
  }
  at::Tensor forward(at::Tensor x) { return x; }
  at::Tensor weight;
};
TORCH_MODULE(Slab);

struct SlabsImpl : torch::nn::Module {
  SlabsImpl(int64_t units, bool filled = false, bool transposed = false) {
    for (int64_t unit = 0; unit < units; ++unit) {
      slabs.emplace_back(unit, filled, transposed);
      register_module("slab" + std::to_string(unit), slabs.back());
    }
  }
  at::Tensor forward(at::Tensor x) { return x; }
  std::vector<fsdp::Unit<Slab>> slabs;
};
TORCH_MODULE(Slabs);

// Returns a value of /proc/self/status in bytes. `what` is its name, such as "VmRSS" or "VmHWM".
int64_t resident(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(what + ":")) return std::stoll(line.substr(what.size() + 1)) * 1024;
  }
  throw std::runtime_error("no " + what);
}

void write(const fsdp::Mesh& mesh, const std::string& folder, int64_t units) {
  fsdp::Unit<Slabs> model(units, /*filled=*/true);
  torch::save(model, folder + "/model.pt");
  torch::save(fsdp::Unit<Slabs>(units, /*filled=*/true, /*transposed=*/true),
              folder + "/transposed.pt");
  fsdp::Engine engine(model, mesh);
  fsdp::save_weights(engine, folder + "/model.safetensors");
}

void load_slabs(const fsdp::Mesh& mesh, const std::string& file, int64_t units) {
  values_of_unit(0).sum().item<float>();  // makes LibTorch allocate its own memory now
  const int64_t empty = resident("VmRSS");
  fsdp::BuildScope building(mesh);
  fsdp::Unit<Slabs> model(units);
  fsdp::Engine engine(model, building);
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the high-water mark
  fsdp::load_weights(engine, file);
  const int64_t grown = resident("VmHWM") - empty;
  int64_t shard = 0, wrong = 0, unit = 0;
  for (const fsdp::ShardedParameter& each : engine.sharded_parameters()) {
    const at::Tensor expected = values_of_unit(unit++).narrow(0, each.begin, each.local.numel());
    wrong += each.local.clone().ne(expected).sum().item<int64_t>();
    shard += static_cast<int64_t>(each.local.nbytes());
  }
  fmt::print("rank {} shard {} grown {} wrong {}\n", mesh.rank(), shard, grown, wrong);
  std::fflush(stdout);
}

}  // namespace

int fsdp::testing::checkpoint_rank(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  at::set_num_threads(1);
  return fsdp::run_program([&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) {
    const std::string& what = words.at(0);
    if (what == "write") write(mesh, words.at(1), std::stoll(words.at(2)));
    if (what == "load") load_slabs(mesh, words.at(1), std::stoll(words.at(2)));
    if (what == "train") {
      fsdp::testing::train_exactly(mesh, {.folder = words.at(1),
                                          .optimizer = words.at(2),
                                          .from = std::stoll(words.at(3)),
                                          .to = std::stoll(words.at(4)),
                                          .tag = words.at(5),
                                          // This width makes the shards so large that ranks map
                                          // each other's shards.
                                          .last = 9000});
    }
    return 0;
  });
}
