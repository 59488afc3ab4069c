// Runs fsdp-ckpt export as a user does.
#include <doctest/doctest.h>
#include <fsdp/safetensors_folder_writer.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include "io/shard_writer.h"
#include "io/support/failing_disk.h"
#include "io/support/shard_files.h"
#include "programs/support/ckpt.h"
#include "support/long_run.h"
#include "support/safetensors_bytes.h"

namespace fsdp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<float> numbered(int64_t numel, float first = 1) {
  std::vector<float> values(static_cast<size_t>(numel));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Returns the values in row-major order of a matrix whose column-major values are 1, 2, ….
std::vector<float> numbered_by_columns(int64_t rows, int64_t columns) {
  std::vector<float> values;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      values.push_back(static_cast<float>(1 + row + column * rows));
    }
  }
  return values;
}

// A checkpoint of two engines, and the files that an export of the first must give.
struct Subject {
  WholeCheckpoint checkpoint{.manifest = manifest_of_step(100), .bytes = {}};
  std::vector<TensorSpec> specs;
  std::vector<std::string> bytes;

  void expect(std::string name, StoredDType dtype, std::vector<int64_t> shape, std::string values) {
    specs.push_back({std::move(name), dtype, std::move(shape)});
    bytes.push_back(std::move(values));
  }
};

Subject subject() {
  Subject made;
  CheckpointManifest& manifest = made.checkpoint.manifest;
  manifest.tensors.clear();
  manifest.objects.push_back({.name = "model", .kind = "Engine", .values = {}});
  manifest.objects.push_back({.name = "teacher", .kind = "Engine", .values = {}});
  const auto add = [&](std::string name, StoredDType dtype, std::vector<int64_t> shape,
                       std::string values, std::vector<int64_t> strides = {}) {
    made.checkpoint.add(std::move(name), dtype, std::move(shape), std::move(values),
                        std::move(strides));
  };
  constexpr StoredDType kF32 = StoredDType::kF32;
  add("model/weight/z.weight", kF32, {3, 5}, elements(numbered(15)));
  made.expect("z.weight", kF32, {3, 5}, elements(numbered(15)));
  manifest.tensors.back().other_names = {"model/weight/tied.weight"};
  add("model/weight/a.transposed", kF32, {4, 6}, elements(numbered(24)), {1, 4});
  made.expect("a.transposed", kF32, {4, 6}, elements(numbered_by_columns(4, 6)));
  add("model/weight/scale", kF32, {}, elements(numbered(1)));
  made.expect("scale", kF32, {}, elements(numbered(1)));
  add("model/weight/empty", kF32, {0, 3}, {});
  made.expect("empty", kF32, {0, 3}, {});
  add("model/weight/row", kF32, {1, 4}, elements(numbered(4)), {1, 1});
  made.expect("row", kF32, {1, 4}, elements(numbered(4)));
  // Channels last: in memory the order is 0, 2, 3, 1.
  add("model/weight/conv", kF32, {2, 3, 2, 1}, elements(numbered(12)), {6, 1, 3, 3});
  made.expect("conv", kF32, {2, 3, 2, 1}, elements<float>({1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12}));
  add("model/buffer/count", StoredDType::kI64, {}, elements<int64_t>({7}));
  made.expect("count", StoredDType::kI64, {}, elements<int64_t>({7}));
  add("model/buffer/mask", StoredDType::kF64, {2, 2}, elements<double>({1, 2, 3, -kInfinity}),
      {1, 2});
  made.expect("mask", StoredDType::kF64, {2, 2}, elements<double>({1, 3, 2, -kInfinity}));
  add("model/buffer_by_rank/mean", StoredDType::kBF16, {3, 2},
      elements<uint16_t>({1, 2, 3, 4, 5, 6}));
  manifest.tensors.back().granule = 2;
  made.expect("mean", StoredDType::kBF16, {2}, elements<uint16_t>({1, 2}));
  add("teacher/weight/z.weight", kF32, {2}, elements(numbered(2, 100)));
  add("optimizer/exp_avg/z.weight", kF32, {15}, elements(numbered(15, 100)));
  return made;
}

// Returns the content of all files of the folder by name, as one text.
std::string content_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::string text;
  for (const std::filesystem::path& path : paths) {
    text += path.filename().string() + "\n" + read_whole(path) + "\n";
  }
  return text;
}

// Writes what an export of the subject must give, by the library's writer.
std::string expected_content(const Subject& subject, ShardOptions options = {}) {
  const ScratchFolder folder;
  SafetensorsFolderWriter writer(folder.path(), subject.specs, std::move(options));
  for (size_t i = 0; i < subject.specs.size(); ++i) {
    writer.append(subject.specs[i].name, bytes_of(subject.bytes[i]));
  }
  writer.commit();
  return content_of(folder.path());
}

std::filesystem::path write(const ScratchFolder& root, WholeCheckpoint checkpoint,
                            int64_t ranks = 1) {
  cut_evenly(checkpoint.manifest, ranks);
  const std::filesystem::path folder = root / ("checkpoint-" + std::to_string(ranks));
  write_checkpoint(folder, std::move(checkpoint));
  return folder;
}

TEST_CASE("fsdp-ckpt export writes the weights of any number of ranks as the library does") {
  const Subject made = subject();
  const ScratchFolder root;
  std::vector<std::filesystem::path> checkpoints{
      write(root, made.checkpoint, 1), write(root, made.checkpoint, 3), root / "replicated"};
  WholeCheckpoint replicated = made.checkpoint;
  give_to_first(replicated.manifest, 3);
  write_checkpoint(checkpoints.back(), std::move(replicated));
  for (const std::filesystem::path& checkpoint : checkpoints) {
    CAPTURE(checkpoint);
    const std::filesystem::path out = root / "new" / "out-" += checkpoint.filename();
    const ProcessResult ending = run_ckpt({"export", checkpoint, out});
    CHECK(ending.code == 0);
    CHECK(ending.err.empty());
    CHECK(ending.out ==
          "note: buffer 'mean' differs between ranks: rank 0's values are written\nwrote 9 "
          "tensors, 268 B, to 1 file in " +
              out.string() + "\n");
    CHECK(content_of(out) == expected_content(made));
  }
}

TEST_CASE("fsdp-ckpt export writes shards and an index") {
  const Subject made = subject();
  const ScratchFolder root;
  const auto checkpoint = write(root, made.checkpoint, 3);
  std::filesystem::create_directory(root / "out");
  const ProcessResult ending =
      run_ckpt({"export", checkpoint, root / "out", "--max-shard-size", "100B"});
  CHECK(ending.code == 0);
  CHECK(ending.out.find(", to 4 files in ") != std::string::npos);
  CHECK(content_of(root / "out") == expected_content(made, {.max_shard_bytes = 100}));
}

TEST_CASE("fsdp-ckpt export rounds parameters to a smaller type, but no buffers") {
  const Subject made = subject();
  const ScratchFolder root;
  WholeCheckpoint checkpoint{.manifest = made.checkpoint.manifest, .bytes = {}};
  checkpoint.manifest.tensors.clear();
  const std::vector<float> values{1, -0.0F, 1.00390625F, 1.01171875F, 65504, 65519, 1e-8F, -3.5F};
  checkpoint.add("model/weight/w", StoredDType::kF32, {2, 4}, elements(values));
  checkpoint.add("model/buffer/b", StoredDType::kF32, {1}, elements<float>({1.00390625F}));
  const auto folder = write(root, checkpoint, 3);
  Subject bfloat16{};
  // Halves between two values of bfloat16 are rounded to the even one.
  bfloat16.expect(
      "w", StoredDType::kBF16, {2, 4},
      elements<uint16_t>({0x3f80, 0x8000, 0x3f80, 0x3f82, 0x4780, 0x4780, 0x322c, 0xc060}));
  bfloat16.expect("b", StoredDType::kF32, {1}, elements<float>({1.00390625F}));
  Subject float16{};
  float16.expect("w", StoredDType::kF16, {2, 4},
                 elements<uint16_t>({0x3c00, 0x8000, 0x3c04, 0x3c0c, 0x7bff, 0x7bff, 0, 0xc300}));
  float16.expect("b", StoredDType::kF32, {1}, elements<float>({1.00390625F}));
  CHECK(run_ckpt({"export", folder, root / "bf16", "--dtype", "bfloat16"}).code == 0);
  CHECK(content_of(root / "bf16") == expected_content(bfloat16));
  CHECK(run_ckpt({"export", folder, root / "fp16", "--dtype", "float16"}).code == 0);
  CHECK(content_of(root / "fp16") == expected_content(float16));
}

TEST_CASE("fsdp-ckpt export refuses values that are not finite, or too large for the type") {
  const ScratchFolder root;
  Subject made = subject();
  std::vector<float> values = numbered(24);
  values[9] = 65520;  // row 1, column 2
  made.checkpoint.bytes[1] = elements(values);
  const auto large = write(root, made.checkpoint, 3);
  check_error(run_ckpt({"export", large, root / "out", "--dtype", "float16"}), 78,
              "element 8 of 'a.transposed' is 65520, which is too large for F16 (" +
                  large.string() + "); hint: use --dtype float32");
  values[9] = std::numeric_limits<float>::quiet_NaN();
  made.checkpoint.bytes[1] = elements(values);
  const auto nan = write(root, made.checkpoint, 1);
  check_error(run_ckpt({"export", nan, root / "out"}), 65,
              "parameter 'a.transposed' is not finite: element 8 is nan (");
  CHECK_FALSE(std::filesystem::exists(root / "out"));
}

TEST_CASE("fsdp-ckpt export writes the engine that --object names") {
  const Subject made = subject();
  const ScratchFolder root;
  const auto checkpoint = write(root, made.checkpoint, 3);
  Subject teacher{};
  teacher.expect("z.weight", StoredDType::kF32, {2}, elements(numbered(2, 100)));
  CHECK(run_ckpt({"export", checkpoint, root / "teacher", "--object", "teacher"}).code == 0);
  CHECK(content_of(root / "teacher") == expected_content(teacher));
  check_error(run_ckpt({"export", checkpoint, root / "out", "--object", "optimizer"}), 64,
              "the checkpoint has no engine 'optimizer' (" + checkpoint.string() +
                  "); hint: use --object with 'model', 'teacher'");
  check_error(run_ckpt({"export", checkpoint, root / "out", "--dtype", "int8"}), 64,
              "--dtype cannot be 'int8' (command line); hint: use float32, bfloat16 or float16");
  for (const char* size : {"5", "0", "1G", "-1"}) {
    check_error(run_ckpt({"export", checkpoint, root / "out", "--max-shard-size", size}), 64,
                "--max-shard-size cannot be '" + std::string(size) + "'");
  }
  CHECK_FALSE(std::filesystem::exists(root / "out"));
}

// Runs an export that fails. Checks that it leaves nothing, in a new folder and in an empty one.
void check_nothing_left(const ScratchFolder& root, const std::filesystem::path& checkpoint,
                        const std::string& limits, int code, const std::string& text) {
  check_error(run_ckpt_within(limits, {"export", checkpoint, root / "new" / "er"}), code, text);
  CHECK_FALSE(std::filesystem::exists(root / "new"));
  std::filesystem::create_directory(root / "empty");
  check_error(
      run_ckpt_within(limits, {"export", checkpoint, root / "empty", "--max-shard-size", "100B"}),
      code, text);
  CHECK(std::filesystem::is_empty(root / "empty"));
  std::filesystem::remove(root / "empty");
}

TEST_CASE("fsdp-ckpt export leaves nothing after damage or on a full disk") {
  const ScratchFolder root;
  Subject made = subject();
  made.checkpoint.add("model/weight/large", StoredDType::kF32, {700'000},
                      elements(numbered(700'000)));
  const auto checkpoint = write(root, made.checkpoint, 3);
  const std::string shard = "shard-00002-of-00003.safetensors";
  // The file-size limit stands for a full disk: both fail the write.
  check_nothing_left(root, checkpoint, "-f 2000", 74,
                     "; File too large; hint: raise the file size limit (ulimit -f)");
  for (const std::string& name : {shard, std::string("shard-00001-of-00003.sum"),
                                  std::string(kIntervalsName), std::string(kManifestName)}) {
    const auto last = static_cast<int64_t>(std::filesystem::file_size(checkpoint / name)) - 1;
    flip_byte(checkpoint / name, last);
    check_nothing_left(root, checkpoint, "-c 0", 65, name + " is damaged: ");
    flip_byte(checkpoint / name, last);
  }
  std::filesystem::rename(checkpoint / shard, root / "moved");
  check_nothing_left(root, checkpoint, "-c 0", 65, shard + " is missing");
  std::filesystem::create_symlink(root / "moved", checkpoint / shard);
  check_nothing_left(root, checkpoint, "-c 0", 65, shard + " is a link");
  CHECK(root.names() == std::vector<std::string>{"checkpoint-3", "moved"});
}

TEST_CASE("fsdp-ckpt export refuses an output folder that is not empty") {
  const Subject made = subject();
  const ScratchFolder root;
  const auto checkpoint = write(root, made.checkpoint, 1);
  std::filesystem::create_directory(root / "out");
  root.write("out/model.safetensors", "earlier");
  check_error(run_ckpt({"export", checkpoint, root / "out"}), 73,
              "the output folder is not empty (" + (root / "out").string() +
                  "); hint: choose a new folder");
  CHECK(content_of(root / "out") == "model.safetensors\nearlier\n");
  check_error(run_ckpt({"export", checkpoint, checkpoint}), 73, "the output folder is not empty (");
  check_error(run_ckpt({"export", checkpoint, root / "out" / "model.safetensors"}), 73,
              "the output folder cannot be created (");
  CHECK(content_of(root / "out") == "model.safetensors\nearlier\n");
  // An export that was killed has left its temporary file.
  std::filesystem::rename(root / "out" / "model.safetensors",
                          root / "out" / ".model.safetensors.tmp.1.0");
  CHECK(run_ckpt({"export", checkpoint, root / "out"}).code == 0);
  CHECK(content_of(root / "out") == expected_content(made));
}

// Writes a checkpoint of one transposed parameter in two shards, in pieces, because it may be
// larger than the memory of the test. The element (row, column) is row + column mod 1,024.
std::filesystem::path write_large(const ScratchFolder& root, int64_t rows, int64_t columns) {
  CheckpointManifest manifest = subject().checkpoint.manifest;
  manifest.tensors = {{.name = "model/weight/w", .shape = {rows, columns}, .strides = {1, rows}}};
  cut_evenly(manifest, 2);
  const std::filesystem::path folder = root / "large";
  std::filesystem::create_directory(folder);
  FailingDisk disk;
  int64_t next = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t end = next + manifest.intervals[i].numel;
    ShardWriter writer(disk, folder / manifest.files[i].name,
                       {{"model/weight/w", StoredDType::kF32, {end - next}}});
    std::vector<float> values;
    while (next < end) {
      values.clear();
      for (; next < end && values.size() < 1 << 20; ++next) {
        values.push_back(static_cast<float>((next % rows + next / rows) % 1024));
      }
      writer.append(std::as_bytes(std::span(values)));
    }
    const BlockSums sums = writer.finish();
    manifest.files[i].bytes = sums.file_bytes;
    manifest.files[i].sum = sum_of(sums);
  }
  set_intervals_entry(manifest);
  write_manifest(folder, manifest);
  return folder;
}

TEST_CASE("fsdp-ckpt export transposes a tensor that is larger than its memory") {
  const ScratchFolder root;
  // A long run shows that the limit of 256 MiB holds. Here the tensor has 160 MiB.
  const int64_t rows = 5120, columns = testing::is_long_run() ? 33'333 : 8192;
  const auto checkpoint = write_large(root, rows, columns);
  const std::string limits = kCkptMemoryIsLimited ? "-d 98304" : "-c 0";
  const ProcessResult ending =
      run_ckpt_within(limits, {"export", checkpoint, root / "out", "--dtype", "bfloat16"});
  CAPTURE(ending.err);
  REQUIRE(ending.code == 0);
  if (kCkptMemoryIsLimited) CHECK(ending.peak_bytes < 128 << 20);
  const SafetensorsFile file(root / "out" / "model.safetensors");
  const StoredTensor* tensor = file.find("w");
  REQUIRE(tensor != nullptr);
  CHECK(tensor->shape == std::vector{rows, columns});
  const auto bytes = file.bytes(*tensor);
  int64_t wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + (row * columns + column) * 2, sizeof bits);
      // Integers below 1,024 have at most ten bits; bfloat16 keeps eight.
      const auto value = static_cast<float>((row + column) % 1024);
      const float found = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      wrong += std::abs(found - value) <= value / 256 ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace fsdp
