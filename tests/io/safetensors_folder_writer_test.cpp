#include <doctest/doctest.h>
#include <fsdp/safetensors_folder.h>
#include <fsdp/safetensors_folder_writer.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

#include "fsdp/error.h"
#include "fsdp/whole_file.h"
#include "io/atomic_file.h"
#include "support/model_files.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

using Names = std::vector<std::string>;

const std::string kIndexFile = "model.safetensors.index.json";

// Writes F32 tensors of 8 bytes whose elements are `value`, in files of at most `max_bytes`.
void write_set(const std::filesystem::path& folder, const Names& tensors, float value,
               int64_t max_bytes) {
  SafetensorsFolderWriter writer(folder, small_tensors(tensors), {.max_shard_bytes = max_bytes});
  const std::array<float, 2> values{value, value};
  for (const std::string& name : tensors) writer.append(name, std::as_bytes(std::span(values)));
  writer.commit();
}

// Returns the value of all tensors in the folder, or NaN if they differ.
float value_in(const std::filesystem::path& folder, size_t tensors) {
  const SafetensorsFolder model(folder);
  REQUIRE(model.tensors().size() == tensors);
  std::optional<float> found;
  for (const TensorSource& source : model.tensors()) {
    float value = 0;
    std::memcpy(&value, source.bytes().data(), sizeof value);
    if (found && *found != value) return std::numeric_limits<float>::quiet_NaN();
    found = value;
  }
  return *found;
}

TEST_CASE("Tensors that fit one file are model.safetensors, without an index") {
  const ScratchFolder folder;
  write_set(folder.path(), {"a", "b", "c"}, 1, 24);
  CHECK(folder.names() == Names{"model.safetensors"});
  CHECK(value_in(folder.path(), 3) == 1);
}

TEST_CASE("Files are filled in the order of the tensors, as transformers names and lists them") {
  const ScratchFolder folder;
  write_set(folder.path(), {"b", "c", "a"}, 1, 23);
  CHECK(folder.names() ==
        Names{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", kIndexFile});
  CHECK(read_whole(folder / kIndexFile) == R"({
  "metadata": {
    "total_size": 24
  },
  "weight_map": {
    "a": "model-00002-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors",
    "c": "model-00001-of-00002.safetensors"
  }
}
)");
  CHECK(SafetensorsFolder(folder.path()).notes().empty());
  CHECK(value_in(folder.path(), 3) == 1);
}

TEST_CASE("A tensor that is larger than a file may be has one of its own") {
  const ScratchFolder folder;
  std::vector<TensorSpec> specs = small_tensors({"a", "large", "b", "c"});
  specs[1].shape = {5};
  specs[3].shape = {0};
  SafetensorsFolderWriter writer(folder.path(), specs, {.max_shard_bytes = 16});
  CHECK(writer.file_count() == 3);
  for (const TensorSpec& spec : specs) {
    const std::vector<float> zeros(spec.shape[0]);
    writer.append(spec.name, std::as_bytes(std::span(zeros)));
  }
  writer.commit();
  const SafetensorsFolder model(folder.path());
  REQUIRE(model.files().size() == 3);
  CHECK(model.files()[1].tensors().size() == 1);
  CHECK(model.files()[1].find("large") != nullptr);
  CHECK(model.files()[2].tensors().size() == 2);
}

TEST_CASE("A set takes an earlier one's place and leaves none of its files") {
  const Names two = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                     kIndexFile};
  const Names three = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                       "model-00003-of-00003.safetensors", kIndexFile};
  const Names one = {"model.safetensors"};
  struct Set {
    int64_t max_bytes;
    Names files;
  };
  for (const auto& earlier : {Set{24, one}, {16, two}, {8, three}}) {
    for (const auto& later : {Set{24, one}, {16, two}, {8, three}}) {
      CAPTURE(earlier.max_bytes);
      CAPTURE(later.max_bytes);
      const ScratchFolder folder;
      const Names bystanders = {"config.json", "model-1-of-3.safetensors",
                                "model-00001-of-00002.safetensors.bak"};
      for (const std::string& name : bystanders) folder.write(name, "not ours");
      write_set(folder.path(), {"a", "b", "c"}, 1, earlier.max_bytes);
      write_set(folder.path(), {"a", "b", "c"}, 2, later.max_bytes);
      CHECK(value_in(folder.path(), 3) == 2);
      Names expected = bystanders;
      expected.insert(expected.end(), later.files.begin(), later.files.end());
      std::ranges::sort(expected);
      CHECK(folder.names() == expected);
    }
  }
}

TEST_CASE("A set that is not committed leaves nothing, and the earlier one as it was") {
  const ScratchFolder folder;
  write_set(folder.path(), {"a", "b"}, 1, 8);
  const Names before = folder.names();
  {
    SafetensorsFolderWriter writer(folder.path(), small_tensors({"a", "b"}),
                                   {.max_shard_bytes = 8});
    writer.append("a", bytes_of("12345678"));
    CHECK_THROWS_WITH_AS(writer.commit(), doctest::Contains("'b' (0 of 8 bytes written)"),
                         StateError);
    CHECK(value_in(folder.path(), 2) == 1);
  }
  CHECK(folder.names() == before);
  CHECK(value_in(folder.path(), 2) == 1);
}

// The writer is killed at times that are distributed over the time of a write.
TEST_CASE("Whenever a writer dies the folder has the earlier set, the new one, or none") {
  constexpr int kMoments = 30;
  const Names tensors = {"a", "b", "c"};
  for (const auto& [earlier, later] : {std::pair{8, 8}, {8, 16}, {8, 1000}, {1000, 8}}) {
    CAPTURE(earlier);
    CAPTURE(later);
    const ScratchFolder folder;
    const auto began = std::chrono::steady_clock::now();
    write_set(folder.path(), tensors, 1, earlier);
    const auto takes = std::chrono::steady_clock::now() - began;
    for (int moment = 0; moment < kMoments; ++moment) {
      const pid_t child = ::fork();
      if (child == 0) {
        write_set(folder.path(), tensors, 2, later);
        ::_exit(0);
      }
      std::this_thread::sleep_for(takes * moment / kMoments);
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
      try {
        const float value = value_in(folder.path(), tensors.size());
        CHECK((value == 1 || value == 2));
      } catch (const IoError& error) {
        CHECK(earlier == later);  // if equal, both sets use the same file names
        CHECK(error.text().what.find("has neither") != std::string::npos);
      }
      remove_leftovers(folder.path(), is_weights_name);
      // Files of a killed writer must not disturb the next writer.
      write_set(folder.path(), tensors, 1, earlier);
      CHECK(value_in(folder.path(), tensors.size()) == 1);
    }
  }
}

TEST_CASE("A reader beside a writer never gets files of two sets") {
  const ScratchFolder folder;
  const Names tensors = {"a", "b", "c", "d"};
  write_set(folder.path(), tensors, 1, 8);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int i = 2; i < 100; ++i) write_set(folder.path(), tensors, static_cast<float>(i), 8);
    ::_exit(0);
  }
  int read = 0;
  for (int status = 0; ::waitpid(child, &status, WNOHANG) == 0;) {
    try {
      const float value = value_in(folder.path(), tensors.size());
      CHECK(value >= 1);  // false for the NaN of a mixture
      ++read;
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kIoError);
    }
  }
  CHECK(read > 0);
  CHECK(value_in(folder.path(), tensors.size()) == 99);
}

TEST_CASE("What cannot be a set is refused and leaves nothing") {
  const ScratchFolder folder;
  const auto refused = [&](std::vector<TensorSpec> specs, int64_t max_bytes, const char* text) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(
        SafetensorsFolderWriter(folder.path(), std::move(specs), {.max_shard_bytes = max_bytes}),
        doctest::Contains(text), InvalidArgument);
    CHECK(folder.names().empty());
  };
  refused(small_tensors({"a"}), 0, "max_shard_bytes is 0, expected 1 or more");
  refused(small_tensors({"a", "b", "a"}), 8, "tensor 'a' is given twice");
  refused({{"a", StoredDType::kF32, {-1}}}, 8, "tensor 'a'");
  SafetensorsFolderWriter writer(folder.path(), small_tensors({"a", "b"}), {.max_shard_bytes = 8});
  CHECK_THROWS_WITH_AS(writer.append("c", bytes_of("1")),
                       doctest::Contains("tensor 'c' is not part of this file"), InvalidArgument);
  CHECK_THROWS_AS(SafetensorsFolderWriter(folder / "nowhere", small_tensors({"a"})), IoError);
}

TEST_CASE("Only names of a folder's weights are its weights'") {
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
        "model-99999-of-99999.safetensors"}) {
    CAPTURE(name);
    CHECK(is_weights_name(name));
  }
  for (const char* name : {"", "model", "config.json", "model-0001-of-00002.safetensors",
                           "model-00001-of-0000x.safetensors", "model-00001-of-00002.safetensors.x",
                           "adapter-00001-of-00002.safetensors"}) {
    CAPTURE(name);
    CHECK_FALSE(is_weights_name(name));
  }
}

}  // namespace
}  // namespace fsdp
