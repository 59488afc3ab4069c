// Saves checkpoints of engines, and runs fsdp-ckpt on them.
#include <fsdp/checkpoint.h>
#include <fsdp/safetensors.h>

#include <filesystem>
#include <functional>
#include <map>

#include "checkpoint/support/exact_training.h"
#include "fsdp/training_state.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::ProcessResult;
using testing::run_torch_ranks;

// A model with two transposed parameters, a tied one, one without dimensions, and buffers.
struct ExportedNetImpl : torch::nn::Module {
  ExportedNetImpl() : embedding(5, 4), norm(4), part(7, 9) {
    register_module("embedding", embedding);
    register_module("norm", norm);
    register_module("part", part);
    head = register_parameter("head", embedding->weight);
    scale = register_parameter("scale", torch::randn({}));
    mask = register_buffer("mask", at::arange(6).reshape({2, 3}).t() > 2);
  }
  at::Tensor forward(int64_t step) { return part(step) * scale * head.sum(); }
  torch::nn::Embedding embedding;
  torch::nn::BatchNorm1d norm;
  Unit<testing::ExactPart> part;
  at::Tensor head, scale, mask;
};
TORCH_MODULE(ExportedNet);

// Returns true if the program was built beside the tests.
bool has_ckpt(std::string& program) {
  program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fsdp-ckpt";
  if (std::filesystem::exists(program)) return true;
  MESSAGE("skipped: fsdp-ckpt was not built beside the tests");
  return false;
}

std::string text_in(const SafetensorsFile& file, const StoredTensor& tensor) {
  const auto bytes = file.bytes(tensor);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Checks that the export has the tensors that save_weights_folder has written, and three buffers of
// the norm, and the mask.
void check_export(const std::filesystem::path& saved, const std::filesystem::path& exported) {
  const SafetensorsFile expected(saved / "model.safetensors");
  const SafetensorsFile found(exported / "model.safetensors");
  CHECK(found.metadata() == expected.metadata());
  CHECK(found.tensors().size() == expected.tensors().size() + 4);
  for (const StoredTensor& tensor : expected.tensors()) {
    CAPTURE(tensor.name);
    const StoredTensor* other = found.find(tensor.name);
    REQUIRE(other != nullptr);
    CHECK(other->dtype == tensor.dtype);
    CHECK(other->shape == tensor.shape);
    CHECK(text_in(found, *other) == text_in(expected, tensor));
  }
}

TEST_CASE("fsdp-ckpt export writes what save_weights_folder writes, and load_weights reads it") {
  std::string program;
  if (!has_ckpt(program)) return;
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    for (const int world : {1, 3}) {
      CAPTURE(world);
      const ScratchFolder folder;
      using Body = std::function<void(Unit<ExportedNet> & model, Engine & engine)>;
      const auto with_model = [&](int ranks, uint64_t seed, const Body& body) {
        run_torch_ranks(ranks, [&](const Mesh& mesh) {
          Unit<ExportedNet> model = testing::build_seeded(seed, [] { return Unit<ExportedNet>(); });
          Engine engine(model, mesh, {.strategy = strategy});
          body(model, engine);
        });
      };
      for (const char* name : {"saved", "halves"}) std::filesystem::create_directory(folder / name);
      std::map<std::string, at::Tensor> parameters;
      with_model(world, 7, [&](Unit<ExportedNet>& model, Engine& engine) {
        const at::NoGradGuard no_grad;
        model->norm->running_mean.fill_(0.5);
        model->norm->num_batches_tracked.fill_(9);
        TrainingState state(engine);
        save(state, folder / "checkpoint", {.step = 3});
        save_weights_folder(engine, folder / "saved");
        save_weights_folder(engine, folder / "halves", {.weights = {.dtype = torch::kBFloat16}});
        auto all = testing::full_parameters(engine);
        if (engine.mesh().rank() == 0) parameters = std::move(all);
      });
      for (const auto& [name, dtype] : {std::pair{"saved", "float32"}, {"halves", "bfloat16"}}) {
        const std::string exported = folder / (std::string("exported-") + name);
        const ProcessResult ending = testing::run_process(
            {program, "export", folder / "checkpoint", exported, "--dtype", dtype});
        CAPTURE(ending.err);
        REQUIRE(ending.code == 0);
        check_export(folder / name, exported);
      }
      with_model(2, 8, [&](Unit<ExportedNet>& model, Engine& engine) {
        CHECK(load_weights(engine, folder / "exported-saved").notes.empty());
        for (const auto& [fqn, value] : testing::full_parameters(engine)) {
          CHECK(testing::bit_equal(value, parameters.at(fqn)));
        }
        CHECK(model->norm->running_mean[3].item<float>() == 0.5);
        CHECK(model->norm->num_batches_tracked.item<int64_t>() == 9);
        CHECK(model->mask.equal(at::arange(6).reshape({2, 3}).t() > 2));
      });
    }
  }
}

TEST_CASE("fsdp-ckpt diff compares the checkpoints of the same training on 1 and 3 ranks") {
  std::string program;
  if (!has_ckpt(program)) return;
  const ScratchFolder folder;
  const auto train = [&](int world, const std::string& name, int64_t steps) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<testing::ExactNet> model(17);
      Engine engine(model, mesh);
      const std::unique_ptr<Optimizer> optimizer = testing::make_optimizer(engine, "adamw");
      for (int64_t step = 0; step < steps; ++step) {
        testing::take_exact_step(engine, model, *optimizer, step);
      }
      TrainingState state(engine);
      state.add("optimizer", *optimizer);
      // Ranks that are threads share one generator.
      save(state, folder / name, {.step = steps, .exclude = [](std::string_view each) {
                                    return each.starts_with("random/");
                                  }});
    });
  };
  train(1, "one", 3);
  train(3, "three", 3);
  train(3, "later", 4);
  const auto diff = [&](const std::string& a, const std::string& b) {
    return testing::run_process({program, "diff", "--all", folder / a, folder / b});
  };
  const ProcessResult equal = diff("one", "three");
  CHECK(equal.out == "the checkpoints are equal\n");
  CHECK(equal.code == 0);
  const ProcessResult later = diff("one", "later");
  CHECK(later.code == 1);
  CHECK(later.out.starts_with("step: 3 and 4\n"));
  CHECK(later.out.find("tensor 'model/weight/part0.weight': ") != std::string::npos);
  CHECK(later.out.find("tensor 'optimizer/exp_avg/part0.weight': ") != std::string::npos);
}

}  // namespace
}  // namespace fsdp
