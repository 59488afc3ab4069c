#include <doctest/doctest.h>
#include <fsdp/safetensors_folder.h>

#include "fsdp/error.h"
#include "support/model_files.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

const std::string kIndex = "model.safetensors.index.json";

IoError folder_refusal(const std::filesystem::path& folder) {
  try {
    const SafetensorsFolder model(folder);
  } catch (const IoError& error) {
    return error;
  }
  FAIL("accepted");
  throw 0;
}

std::vector<std::string> names_of(const SafetensorsFolder& model) {
  std::vector<std::string> names;
  for (const TensorSource& source : model.tensors()) names.push_back(source.tensor->name);
  return names;
}

// Writes two shards that contain the tensors a, b and c.
void write_shards(const ScratchFolder& folder) {
  write_zeros(folder / "m-1.safetensors", small_tensors({"a", "b"}));
  write_zeros(folder / "m-2.safetensors", small_tensors({"c"}));
}

TEST_CASE("A folder with one file gives that file's tensors") {
  const ScratchFolder folder;
  write_zeros(folder / "model.safetensors", small_tensors({"b", "a"}));
  SafetensorsFolder first(folder.path());
  const SafetensorsFolder model = std::move(first);  // sources stay valid when the folder moves
  CHECK(names_of(model) == std::vector<std::string>{"a", "b"});
  CHECK(model.tensors()[1].bytes().size() == 8);
  CHECK(model.files().size() == 1);
  CHECK(model.notes().empty());
}

TEST_CASE("A folder with shards gives the tensors of all of them") {
  const ScratchFolder folder;
  write_shards(folder);
  folder.write(kIndex, R"({"metadata":{"total_size":24},"weight_map":)"
                       R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}})");
  const SafetensorsFolder model(folder.path());
  CHECK(names_of(model) == std::vector<std::string>{"a", "b", "c"});
  CHECK(model.tensors()[2].file->path() == folder / "m-2.safetensors");
  CHECK(model.notes().empty());
}

TEST_CASE("What is odd but harmless is noted") {
  const ScratchFolder folder;
  write_shards(folder);
  folder.write(kIndex, R"({"metadata":{"total_size":25},"weight_map":)"
                       R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}})");
  const SafetensorsFolder sharded(folder.path());
  REQUIRE(sharded.notes().size() == 1);
  CHECK(sharded.notes()[0] == kIndex + " says 25 bytes in all, but the shards hold 24 bytes");

  write_zeros(folder / "model.safetensors", small_tensors({"x"}));
  const SafetensorsFolder both(folder.path());
  CHECK(names_of(both) == std::vector<std::string>{"x"});
  REQUIRE(both.notes().size() == 1);
  CHECK(both.notes()[0] == "model.safetensors is read; " + kIndex + " beside it is ignored");
}

TEST_CASE("A folder without weights is an I/O error that says what was looked for") {
  const ScratchFolder folder;
  const IoError empty = folder_refusal(folder.path());
  CHECK(empty.code() == ExitCode::kIoError);
  CHECK(empty.text().what == "the model folder has neither model.safetensors nor " + kIndex);

  folder.write("pytorch_model.bin", "x");
  CHECK(folder_refusal(folder.path()).text().hint ==
        "use load_weights for pytorch_model.bin: only safetensors are read here");

  const IoError missing = folder_refusal(folder / "missing");
  CHECK(missing.code() == ExitCode::kIoError);
  CHECK(missing.text().what == "the model folder does not exist");
  CHECK(folder_refusal(folder / "pytorch_model.bin").text().what == "the model must be a folder");
}

TEST_CASE("A malformed file in the folder is corrupt data and named") {
  const ScratchFolder folder;
  folder.write("model.safetensors", "hello");
  const IoError error = folder_refusal(folder.path());
  CHECK(error.code() == ExitCode::kCorruptData);
  CHECK(error.text().where == (folder / "model.safetensors").string() + ", byte 5");
}

TEST_CASE("An index and shards that disagree are refused with the tensor's name") {
  const ScratchFolder folder;
  write_shards(folder);
  struct Case {
    std::string map, expected;
  };
  const Case cases[] = {
      {R"({})", "the index lists no tensor"},
      {R"({"a":"m-1.safetensors","c":"m-2.safetensors"})",
       "tensor 'b' is in m-1.safetensors, but the index does not list it there"},
      {R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})",
       "tensor 'b' is in m-1.safetensors, but the index does not list it there"},
      {R"({"a":"m-1.safetensors","b":"m-1.safetensors","d":"m-1.safetensors"})",
       "the index lists tensor 'd' in m-1.safetensors, but the file does not hold it"},
  };
  for (const auto& [map, expected] : cases) {
    folder.write(kIndex, "{\"weight_map\":" + map + "}");
    const IoError error = folder_refusal(folder.path());
    CHECK(error.code() == ExitCode::kCorruptData);
    CHECK(error.text().what == expected);
    CHECK(error.text().where == (folder / kIndex).string());
  }
  // Both shards contain tensor a.
  write_zeros(folder / "m-2.safetensors", small_tensors({"a", "c"}));
  folder.write(kIndex, R"({"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors",)"
                       R"("c":"m-2.safetensors"}})");
  CHECK(folder_refusal(folder.path()).text().what ==
        "tensor 'a' is in m-2.safetensors, but the index does not list it there");
  // A shard of the index is missing.
  folder.write(kIndex, R"({"weight_map":{"a":"m-1.safetensors","z":"m-9.safetensors"}})");
  const IoError missing = folder_refusal(folder.path());
  CHECK(missing.code() == ExitCode::kIoError);
  CHECK(missing.text().where == (folder / "m-9.safetensors").string());
}

}  // namespace
}  // namespace fsdp
