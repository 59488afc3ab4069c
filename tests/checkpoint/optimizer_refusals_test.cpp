// Loads optimizer states that belong to another optimizer, are corrupt, or cannot be read or
// written.
#include <fsdp/safetensors.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <limits>

#include "checkpoint/support/exact_training.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::ExactNet;
using testing::run_torch_ranks;
using testing::take_exact_step;
using testing::train_exactly;

// Returns the error text of load_optimizer on the rank that throws it. First checks that nothing
// changed on any rank.
std::string refusal(const ScratchFolder& folder, const std::filesystem::path& file,
                    const std::function<std::unique_ptr<Optimizer>(Engine&)>& make,
                    bool frozen = false) {
  std::string said = "accepted";
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    if (frozen) model->scale.set_requires_grad(false);
    Engine engine(model, mesh);
    const std::unique_ptr<Optimizer> optimizer = make(engine);
    optimizer->set_lr(0.125);
    take_exact_step(engine, model, *optimizer, 0);
    save_optimizer(*optimizer, folder / "before");
    OptimizerReport report;
    const Outcome outcome = try_to_load_optimizer(*optimizer, file, report);
    CHECK(outcome.failed());
    try {
      if (outcome.mine) std::rethrow_exception(outcome.mine);
    } catch (const IoError& error) {
      CHECK(error.text().where.starts_with(file.string()));
      said = error.text().what;
      if (!error.text().cause.empty()) said += "; " + error.text().cause;
    }
    save_optimizer(*optimizer, folder / "after");
  });
  CHECK(read_whole(folder / "before") == read_whole(folder / "after"));
  return said;
}

std::unique_ptr<Optimizer> plain_adamw(Engine& engine) {
  return std::make_unique<AdamW>(engine, AdamWOptions{});
}

// Copies a file. `edit` receives the name, shape and bytes of each tensor. It may change them. If
// it empties the name, the tensor is left out.
void rewrite(const std::filesystem::path& from, const std::filesystem::path& to,
             const std::function<void(TensorSpec&, std::string&)>& edit,
             const std::map<std::string, std::string>& metadata = {}) {
  const SafetensorsFile file(from);
  std::vector<TensorSpec> specs;
  std::vector<std::string> values;
  for (const StoredTensor& tensor : file.tensors()) {
    TensorSpec spec = tensor;
    const auto bytes = file.bytes(tensor);
    std::string value(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    edit(spec, value);
    if (spec.name.empty()) continue;
    specs.push_back(spec);
    values.push_back(value);
  }
  std::map<std::string, std::string> said = file.metadata();
  for (const auto& [name, value] : metadata) said[name] = value;
  SafetensorsWriter writer(to, specs, said);
  for (size_t i = 0; i < specs.size(); ++i) {
    writer.append(specs[i].name, std::as_bytes(std::span(values[i])));
  }
  writer.commit();
}

TEST_CASE("what is no state of this optimizer is refused by name, and nothing has changed") {
  const ScratchFolder folder;
  run_torch_ranks(2, [&](const Mesh& mesh) {
    train_exactly(mesh, {.folder = folder.path(), .to = 3});
    train_exactly(mesh, {.folder = folder.path(), .optimizer = "sgd", .to = 3, .tag = "-sgd"});
  });
  const std::filesystem::path good = folder / "optimizer-3", bad = folder / "bad";
  const auto said = [&](const std::function<void(TensorSpec&, std::string&)>& edit,
                        const std::map<std::string, std::string>& metadata = {}) {
    rewrite(good, bad, edit, metadata);
    return refusal(folder, bad, plain_adamw);
  };
  const auto nothing = [](TensorSpec&, std::string&) {};

  CHECK(refusal(folder, folder / "optimizer-3-sgd", plain_adamw) ==
        "expected state of AdamW, got state of 'SGD'");
  CHECK(refusal(folder, folder / "weights-3", plain_adamw) == "the file is not an optimizer state");
  CHECK(refusal(folder, folder / "missing", plain_adamw) ==
        "cannot read the file; No such file or directory");
  CHECK(refusal(folder, folder / "optimizer-3-sgd",
                [](Engine& engine) {
                  return std::make_unique<SGD>(engine, SgdOptions{.weight_decay = 0.1});
                })
            .starts_with("the state has 7 tensors that the optimizer does not have: "
                         "'part0.bias.momentum_buffer', "));
  CHECK(refusal(folder, good, plain_adamw, /*frozen=*/true) ==
        "the state has 1 parameter that the optimizer does not train: 'scale'");
  CHECK(said(nothing, {{"version", "3"}}) ==
        "the optimizer state has version '3', expected 1 or 2");
  CHECK(said(nothing, {{"lr", "-1"}}) ==
        "the state's lr is '-1' and its count of steps is '3', expected numbers of 0 or more");
  CHECK(said(nothing, {{"lr", "nan"}}) ==
        "the state's lr is 'nan' and its count of steps is '3', expected numbers of 0 or more");
  CHECK(said(nothing, {{"steps", "3x"}}) ==
        "the state's lr is '0.03' and its count of steps is '3x', expected numbers of 0 or more");
  CHECK(said([](TensorSpec& spec, std::string&) {
          if (spec.name == "scale.step") spec.name.clear();
        }) == "the state lacks 1 parameter that the optimizer trains: 'scale'");
  CHECK(said([](TensorSpec& spec, std::string&) {
          if (spec.name == "scale.exp_avg") spec.name.clear();
        }).starts_with("tensor 'scale.exp_avg' is missing from the state"));
  CHECK(said([](TensorSpec& spec, std::string&) {
          if (spec.name == "scale.exp_avg") spec.name = "scale.max_exp_avg_sq";
        }).starts_with("tensor 'scale.exp_avg' is missing from the state"));
  CHECK(said([](TensorSpec& spec, std::string&) {
          if (spec.name == "part0.weight.exp_avg") spec.shape = {7, 5};
        }) ==
        "tensor 'part0.weight.exp_avg' is F32 of shape [7, 5], the optimizer expects F32 of "
        "shape [5, 7]");
  CHECK(said([](TensorSpec& spec, std::string& value) {
          if (spec.name == "scale.step") value.assign(8, '\xff');
        }) == "tensor 'scale.step' is not a count of steps, expected one I64 of 0 or more");
  // This is the last tensor that is read. The tensors before it must not be written either.
  CHECK(said([](TensorSpec& spec, std::string& value) {
          const float nan = std::numeric_limits<float>::quiet_NaN();
          if (spec.name == "part2.weight.exp_avg_sq") std::memcpy(value.data() + 40, &nan, 4);
        }).starts_with("tensor 'part2.weight.exp_avg_sq' is not finite: element "));
  const std::string whole = read_whole(good);
  folder.write("bad", std::string_view(whole).substr(0, whole.size() - 100));
  CHECK(refusal(folder, bad, plain_adamw) != "accepted");
}

TEST_CASE("a state that is saved with momentum needs momentum, and says which options differ") {
  const ScratchFolder folder;
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    save_optimizer(*std::make_unique<SGD>(engine, SgdOptions{.lr = 1e-2}), folder / "plain");
    SGD momentum(engine, {.lr = 1e-2, .momentum = 0.9});
    CHECK_THROWS_WITH_AS(
        load_optimizer(momentum, folder / "plain"),
        doctest::Contains("tensor 'scale.momentum_buffer' is missing from the state"), IoError);
    CHECK_THROWS_WITH_AS(load_optimizer(momentum, folder / "plain"),
                         doctest::Contains("momentum is 0.9; the saved optimizer had '0'"),
                         IoError);
  });
}

TEST_CASE("a state that cannot be written leaves the file as it was, and all ranks hear of it") {
  const ScratchFolder folder;
  folder.write("state", "an earlier one");
  run_torch_ranks(3, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    AdamW optimizer(engine, {});
    const Outcome nowhere = try_to_save_optimizer(optimizer, folder / "no/such/folder/state");
    CHECK(nowhere.code == ExitCode::kCannotCreate);
    CHECK((nowhere.mine != nullptr) == (mesh.rank() == 0));
  });
  // The file size limit imitates a disk that is full after 4 KiB, in the middle of the moments.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit full{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &full);
  run_torch_ranks(3, [&](const Mesh& mesh) {
    Unit<ExactNet> model;
    Engine engine(model, mesh);
    AdamW optimizer(engine, {});
    const Outcome outcome = try_to_save_optimizer(optimizer, folder / "state");
    CHECK(outcome.code == ExitCode::kIoError);
    CHECK((outcome.mine != nullptr) == (mesh.rank() == 0));
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(folder.names() == std::vector<std::string>{"state"});
  CHECK(read_whole(folder / "state") == "an earlier one");
}

}  // namespace
}  // namespace fsdp
