// Saves weights of one engine to a file and loads them into another.
#include <fsdp/checkpoint.h>
#include <fsdp/safetensors_folder.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "plan/placement.h"
#include "support/mismatch_text.h"
#include "support/models.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::Chain;

using Parameters = std::map<std::string, at::Tensor>;

// Runs body(engine) on every rank of a world. The engine's model is seeded.
void with_engine(int world, uint64_t seed, const std::function<void(Engine&)>& body) {
  testing::run_torch_ranks(world, [&](const Mesh& mesh) {
    Unit<Chain> model = testing::build_seeded(seed, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    body(engine);
  });
}

Parameters save_seeded(int world, uint64_t seed, const std::filesystem::path& file,
                       const SaveOptions& options = {}) {
  Parameters saved;
  with_engine(world, seed, [&](Engine& engine) {
    save_weights(engine, file, options);
    const Parameters whole = testing::full_parameters(engine);
    if (engine.mesh().rank() == 0) saved = whole;
  });
  return saved;
}

void check_loads(int world, const std::filesystem::path& path, const Parameters& expected,
                 const LoadOptions& options = {}) {
  with_engine(world, /*seed=*/99, [&](Engine& engine) {
    CHECK(load_weights(engine, path, options).notes.empty());
    const Parameters loaded = testing::full_parameters(engine);
    REQUIRE(loaded.size() == expected.size());
    for (const auto& [fqn, value] : expected) {
      CAPTURE(fqn);
      CHECK(testing::bit_equal(loaded.at(fqn), value));
    }
  });
}

void write_file(const std::filesystem::path& path, const Parameters& tensors, StoredDType dtype) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, dtype, tensor.sizes().vec()});
  SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : tensors) {
    writer.append(name, {static_cast<const std::byte*>(tensor.const_data_ptr()),
                         static_cast<size_t>(tensor.nbytes())});
  }
  writer.commit();
}

TEST_CASE("weights saved by any number of ranks load on any other, bit by bit") {
  for (const int saving : {1, 3}) {
    const ScratchFolder folder;
    const Parameters saved = save_seeded(saving, 7, folder / "model.safetensors");
    for (const int loading : {1, 2, 5}) {
      CAPTURE(saving);
      CAPTURE(loading);
      check_loads(loading, folder / "model.safetensors", saved);
      check_loads(loading, folder.path(), saved);  // loads the folder instead of the file
    }
  }
}

TEST_CASE("a file has one set of bytes, whatever the number of ranks that wrote it") {
  const ScratchFolder folder;
  save_seeded(1, 7, folder / "one");
  save_seeded(3, 7, folder / "three");
  CHECK(read_whole(folder / "one") == read_whole(folder / "three"));
}

TEST_CASE("a folder of shards has the bytes of one file, and loads on any number of ranks") {
  const ScratchFolder folder;
  const Parameters saved = save_seeded(1, 7, folder / "one");
  constexpr int64_t kMaxBytes = 2048;
  for (const int saving : {1, 3}) {
    const std::filesystem::path shards = folder / std::to_string(saving);
    std::filesystem::create_directory(shards);
    with_engine(saving, 7, [&](Engine& engine) {
      save_weights_folder(engine, shards, {.max_shard_bytes = kMaxBytes});
    });
    const SafetensorsFile one(folder / "one");
    const SafetensorsFolder several(shards);
    CHECK(several.files().size() > 2);
    CHECK(several.tensors().size() == one.tensors().size());
    for (const TensorSource& source : several.tensors()) {
      CAPTURE(source.tensor->name);
      CHECK(std::ranges::equal(source.bytes(), one.bytes(*one.find(source.tensor->name))));
    }
    for (const SafetensorsFile& file : several.files()) {
      int64_t bytes = 0;
      for (const StoredTensor& tensor : file.tensors()) bytes += tensor.nbytes;
      CHECK((bytes <= kMaxBytes || file.tensors().size() == 1));
    }
    for (const int loading : {1, 2, 5}) check_loads(loading, shards, saved);
  }
}

TEST_CASE("a folder that cannot be written keeps what it has, and all ranks hear of it") {
  const ScratchFolder folder;
  with_engine(3, 7, [&](Engine& engine) {
    const Outcome outcome = try_to_save_weights_folder(engine, folder / "nowhere");
    CHECK(outcome.code == ExitCode::kCannotCreate);
    CHECK((outcome.mine != nullptr) == (engine.mesh().rank() == 0));
    save_weights_folder(engine, folder.path());
  });
  CHECK(folder.names() == std::vector<std::string>{"model.safetensors"});
}

TEST_CASE("saving between two forwards changes nothing for the ranks, in every strategy") {
  const ScratchFolder folder;
  for (const Strategy strategy : testing::kStrategies) {
    CAPTURE(name_of(strategy));
    testing::run_torch_ranks(2, [&](const Mesh& mesh) {
      Unit<Chain> model = testing::build_seeded(3, [] { return Unit<Chain>(); });
      Engine engine(model, mesh, {.strategy = strategy});
      const torch::NoGradGuard no_grad;
      const at::Tensor x = torch::ones({2, 3}, torch::kLong);
      const at::Tensor before = model(x);
      save_weights(engine, folder / "model.safetensors");
      CHECK(testing::bit_equal(model(x), before));  // save_weights gathers on all ranks
    });
  }
}

TEST_CASE("the forward after a load computes with what was loaded, in every strategy and type") {
  const ScratchFolder folder;
  save_seeded(1, 7, folder / "m");
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::ones({2, 3}, torch::kLong);
  for (const Strategy strategy : testing::kAllStrategies) {
    for (const std::optional<at::ScalarType> dtype :
         {std::optional<at::ScalarType>(), std::optional(torch::kBFloat16)}) {
      CAPTURE(name_of(strategy));
      at::Tensor outputs[2];  // of the saved model, and of the model that loads it
      for (const bool loads : {false, true}) {
        testing::run_torch_ranks({.replicate = 2, .shard = 2}, [&](const Mesh& mesh) {
          const torch::NoGradGuard no_grad_here;
          Unit<Chain> model = testing::build_seeded(loads ? 3 : 7, [] { return Unit<Chain>(); });
          Engine engine(model, mesh,
                        {.mixed_precision = {.param_dtype = dtype}, .strategy = strategy});
          if (loads) {
            model(x);  // some strategies keep gathered parameters for the load
            load_weights(engine, folder / "m");
          }
          const at::Tensor output = model(x);
          if (mesh.rank() == 3) outputs[loads ? 1 : 0] = output;
        });
      }
      CHECK(testing::bit_equal(outputs[0], outputs[1]));
    }
  }
}

TEST_CASE("weights saved in a lower type are rounded once") {
  for (const at::ScalarType type : {torch::kBFloat16, torch::kFloat16, torch::kFloat64}) {
    const ScratchFolder folder;
    Parameters saved = save_seeded(2, 7, folder / "low.safetensors", {.dtype = type});
    for (auto& [fqn, value] : saved) value = value.to(type).to(at::kFloat);
    const SafetensorsFile file(folder / "low.safetensors");
    for (const StoredTensor& tensor : file.tensors()) CHECK(tensor.dtype == stored_dtype(type));
    check_loads(3, folder / "low.safetensors", saved);
  }
}

TEST_CASE("names in the file may be others") {
  const ScratchFolder folder;
  const Parameters saved =
      save_seeded(2, 7, folder / "renamed",
                  {.stored_name = [](std::string_view fqn) { return "gpt." + std::string(fqn); },
                   .metadata = {{"by", "a test"}}});
  const SafetensorsFile file(folder / "renamed");
  CHECK(file.metadata().at("by") == "a test");
  CHECK(file.find("gpt.norm.weight") != nullptr);
  check_loads(2, folder / "renamed", saved, {.parameter_name = [](std::string_view name) {
                return std::string(name.substr(4));
              }});
}

TEST_CASE("a type that holds no weights is refused on every rank") {
  const ScratchFolder folder;
  testing::run_ranks(2, [&](const Mesh& mesh) {
    Unit<Chain> model = testing::build_seeded(1, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    CHECK_THROWS_WITH_AS(save_weights(engine, folder / "m", {.dtype = torch::kInt32}),
                         doctest::Contains("weights cannot be saved as int32"), InvalidArgument);
  });
  CHECK(folder.names().empty());
}

TEST_CASE("a value that is not finite is refused with its tensor and its place") {
  const ScratchFolder folder;
  Parameters values = save_seeded(1, 7, folder / "whole");
  for (auto& [fqn, value] : values) value = value.to(at::kDouble).contiguous();
  values.at("head.weight").flatten()[77] = 1e300;  // finite as float64, infinite as float32
  write_file(folder / "broken", values, StoredDType::kF64);
  with_engine(3, 9, [&](Engine& engine) {
    try {
      load_weights(engine, folder / "broken");
      FAIL("accepted");
    } catch (const IoError& error) {  // thrown by the rank that has the element
      CHECK(error.text().what == "tensor 'head.weight' is not finite: element 77 is inf");
      CHECK(error.text().where == (folder / "broken").string());
      engine.mesh().abort("as a program does");
    } catch (const RefusedElsewhere& error) {
      CHECK(error.code() == ExitCode::kCorruptData);
    }
  });
}

TEST_CASE("a file that one rank cannot read ends all ranks") {
  const ScratchFolder folder;
  save_seeded(1, 7, folder / "m");
  with_engine(2, 9, [&](Engine& engine) {
    const bool sees_it = engine.mesh().rank() == 0;
    try {
      load_weights(engine, folder / (sees_it ? "m" : "missing"));
      FAIL("accepted");
    } catch (const IoError&) {
      CHECK(!sees_it);
      engine.mesh().abort("as a program does");
    } catch (const RefusedElsewhere& error) {
      CHECK(sees_it);
      CHECK(error.code() == ExitCode::kIoError);
    }
  });
}

TEST_CASE("who saves where nothing can be written is told, and may write elsewhere") {
  const ScratchFolder folder;
  with_engine(3, 7, [&](Engine& engine) {
    const Outcome outcome = try_to_save_weights(engine, folder / "no/such/folder/m");
    CHECK(outcome.code == ExitCode::kCannotCreate);
    CHECK((outcome.mine != nullptr) == (engine.mesh().rank() == 0));
    save_weights(engine, folder / "m");
  });
  CHECK(folder.names() == std::vector<std::string>{"m"});
}

TEST_CASE("a save by rank 0 alone, while the others train, is told to all, both sides named") {
  const ScratchFolder folder;
  const auto errors = testing::errors_of_ranks(
      2,
      [&](const Mesh& mesh) {
        Unit<Chain> model = testing::build_seeded(7, [] { return Unit<Chain>(); });
        Engine engine(model, mesh);
        const auto train = [&] { model(torch::ones({2, 6}, torch::kLong)).sum().backward(); };
        train();
        if (mesh.rank() == 0) save_weights(engine, folder / "m");
        train();
      },
      {.mesh = {.timeout = std::chrono::seconds(60)}, .in_each_thread = {}});
  CHECK(errors[0].starts_with(testing::kDisagree + "rank "));
  CHECK(errors[0].find("rank 0 issued ") != std::string::npos);
  CHECK(errors[0].find("rank 1 issued ") != std::string::npos);
  CHECK(errors[1] == errors[0]);
  CHECK(folder.names().empty());
}

}  // namespace
}  // namespace fsdp
