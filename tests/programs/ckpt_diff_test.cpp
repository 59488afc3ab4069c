// Runs fsdp-ckpt diff as a user does.
#include <doctest/doctest.h>

#include <filesystem>
#include <limits>
#include <numeric>

#include "io/support/shard_files.h"
#include "programs/support/ckpt.h"

namespace fsdp {
namespace {

std::vector<float> counted_up(int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

// Returns a checkpoint with a transposed tensor, a 0-d tensor, an empty one and the random states
// of `ranks` ranks.
WholeCheckpoint small_content(int64_t ranks = 1) {
  WholeCheckpoint content{.manifest = manifest_of_step(100), .bytes = {}};
  content.manifest.tensors.clear();
  content.add("model/weight/a", StoredDType::kF32, {4, 6}, elements(counted_up(24)), {1, 4});
  content.add("model/weight/empty", StoredDType::kF32, {0, 3}, {});
  content.add("optimizer/exp_avg/a", StoredDType::kF32, {24}, elements(counted_up(24)));
  content.add("count", StoredDType::kI64, {}, elements<int64_t>({7}));
  std::string rows;
  for (int64_t rank = 0; rank < ranks; ++rank)
    rows += std::string(5, static_cast<char>('0' + rank));
  content.add("random/cpu", StoredDType::kU8, {ranks, 5}, rows);
  content.manifest.tensors.back().granule = 5;
  return content;
}

std::filesystem::path write(const ScratchFolder& root, const std::string& name,
                            WholeCheckpoint content, int64_t ranks) {
  cut_evenly(content.manifest, ranks);
  write_checkpoint(root / name, std::move(content));
  return root / name;
}

// Returns the lines of a diff whose checkpoints differ, or "equal".
std::string difference(const ScratchFolder& root, const std::filesystem::path& a,
                       const std::filesystem::path& b, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments{"diff", a, b};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const ProcessResult ending = run_ckpt(arguments);
  CAPTURE(ending.err);
  CHECK(ending.err.empty());
  if (ending.out == "the checkpoints are equal\n" && ending.code == 0) return "equal";
  CHECK(ending.code == 1);
  return without_root(ending.out, root);
}

TEST_CASE("fsdp-ckpt diff: checkpoints of 1, 2 and 3 ranks with the same values are equal") {
  const ScratchFolder root;
  const auto one = write(root, "one", small_content(1), 1);
  const auto two = write(root, "two", small_content(2), 2);
  WholeCheckpoint replicated = small_content(3);
  replicated.manifest.run = std::string(32, 'a');
  replicated.manifest.conditions["strategy"] = "replicate";
  give_to_first(replicated.manifest, 3);
  write_checkpoint(root / "three", std::move(replicated));
  for (const auto& a : {one, two, root / "three"}) {
    for (const auto& b : {one, two, root / "three"}) CHECK(difference(root, a, b) == "equal");
  }
}

TEST_CASE("fsdp-ckpt diff shows values and objects that differ") {
  const ScratchFolder root;
  const auto a = write(root, "a", small_content(), 1);
  WholeCheckpoint other = small_content();
  other.manifest.step = 200;
  std::vector<ManifestObject>& objects = other.manifest.objects;
  objects[0].kind = "SGD";
  objects[0].values["lr"] = 2e-3;
  objects[0].values["worst"] = std::numeric_limits<double>::quiet_NaN();
  objects[0].values.erase("step");
  objects[1].name = "scaler";
  const auto b = write(root, "b", other, 2);
  const std::string lines =
      "step: 100 and 200\n"
      "object optimizer: AdamW and SGD\n"
      "optimizer lr: 0.001 and 0.002\n"
      "optimizer step: 1200 and no value\n"
      "optimizer worst: -inf and nan\n";
  CHECK(difference(root, a, b) == lines +
                                      "only in ROOT/a: 1 object, 'user'\n"
                                      "only in ROOT/b: 1 object, 'scaler'\n");
  CHECK(difference(root, a, b, {"--all"}) == lines +
                                                 "only in ROOT/a: object 'user'\n"
                                                 "only in ROOT/b: object 'scaler'\n");
  CHECK(difference(root, b, b) == "equal");  // a NaN equals itself
}

TEST_CASE("fsdp-ckpt diff shows the first tensor that differs, or all of them") {
  const ScratchFolder root;
  const auto a = write(root, "a", small_content(), 1);
  WholeCheckpoint other = small_content();
  std::vector<float> values = counted_up(24);
  values[5] = 6.5F;
  values[6] = 9;
  values[23] = -0.0F;
  other.bytes[0] = elements(values);
  other.bytes[3] = elements<int64_t>({std::numeric_limits<int64_t>::min()});
  const auto b = write(root, "b", other, 3);
  const std::string first =
      "tensor 'model/weight/a': 3 of 24 elements differ by at most 24, first element 5: 6 and "
      "6.5\n";
  CHECK(difference(root, a, b) == first + "4 more tensors not compared (--all)\n");
  CHECK(difference(root, a, b, {"--all"}) ==
        first +
            "tensor 'count': 1 of 1 elements differ by at most 9223372036854775815, first element "
            "0: 7 and -9223372036854775808\n");
}

TEST_CASE("fsdp-ckpt diff compares elements of each type bit by bit") {
  struct Pair {
    StoredDType dtype;
    std::string a, b, text;
  };
  using Limits = std::numeric_limits<float>;
  constexpr float kNan = Limits::quiet_NaN();
  std::vector<Pair> pairs;
  const auto add = [&]<class T>(StoredDType dtype, const std::vector<T>& a, const std::vector<T>& b,
                                std::string text) {
    pairs.push_back({dtype, elements(a), elements(b), std::move(text)});
  };
  add(StoredDType::kF32, std::vector{1.0F, 0.0F}, {1.0F, -0.0F}, "0, first element 1: 0 and -0");
  add(StoredDType::kF32, std::vector{1.0F, kNan, 5.0F}, {kNan, kNan, 2.0F},
      "nan, first element 0: 1 and nan");
  add(StoredDType::kF32, std::vector{1.0F, 3.0F}, {Limits::infinity(), 0.0F},
      "inf, first element 0: 1 and inf");
  add(StoredDType::kF64, std::vector{0.5}, {0.75}, "0.25, first element 0: 0.5 and 0.75");
  add(StoredDType::kBF16, std::vector<uint16_t>{0x3f80}, {0x4000}, "1, first element 0: 1 and 2");
  add(StoredDType::kF16, std::vector<uint16_t>{0x3c00}, {0x3800},
      "0.5, first element 0: 1 and 0.5");
  add(StoredDType::kI32, std::vector{-2}, {3}, "5, first element 0: -2 and 3");
  add(StoredDType::kI16, std::vector<int16_t>{-2}, {3}, "5, first element 0: -2 and 3");
  add(StoredDType::kI8, std::vector<int8_t>{-2}, {3}, "5, first element 0: -2 and 3");
  add(StoredDType::kU8, std::vector<uint8_t>{200}, {3}, "197, first element 0: 200 and 3");
  add(StoredDType::kBool, std::vector<uint8_t>{0}, {1}, "1, first element 0: 0 and 1");
  for (const Pair& pair : pairs) {
    CAPTURE(name_of(pair.dtype));
    const ScratchFolder root;
    WholeCheckpoint a = small_content(), b = small_content();
    const int64_t numel = std::ssize(pair.a) * 8 / bits_of(pair.dtype);
    a.add("x", pair.dtype, {numel}, pair.a);
    b.add("x", pair.dtype, {numel}, pair.b);
    const std::string lines = difference(root, write(root, "a", a, 2), write(root, "b", b, 1));
    CHECK(lines.ends_with(" elements differ by at most " + pair.text + "\n"));
  }
  const ScratchFolder root;
  WholeCheckpoint a = small_content(), b = small_content();
  a.add("x", StoredDType::kF8E4M3, {2}, "ab");
  b.add("x", StoredDType::kF8E4M3, {2}, "ac");
  CHECK(difference(root, write(root, "a", a, 2), write(root, "b", b, 1)) ==
        "tensor 'x': 1 of 2 elements differ, first element 1: 0x62 and 0x63\n");
}

TEST_CASE("fsdp-ckpt diff shows tensors of another form, and those of one checkpoint only") {
  const ScratchFolder root;
  const auto a = write(root, "a", small_content(), 1);
  WholeCheckpoint other = small_content();
  other.manifest.tensors[0].strides = {6, 1};
  other.manifest.tensors[1].strides = {1, 1};  // of an empty tensor, without effect
  other.manifest.tensors[2].name = "optimizer/exp_avg/b";
  other.manifest.tensors[3].shape = {1};
  other.manifest.tensors[3].strides = {5};
  const auto b = write(root, "b", other, 2);
  CHECK(difference(root, a, b) ==
        "tensor 'model/weight/a': F32 of shape [4, 6] and strides [1, 4] and F32 of shape [4, 6] "
        "and strides [6, 1]\n"
        "tensor 'count': I64 of shape [] and strides [] and I64 of shape [1] and strides [5]\n"
        "only in ROOT/a: 1 tensor, 'optimizer/exp_avg/a'\n"
        "only in ROOT/b: 1 tensor, 'optimizer/exp_avg/b'\n");
}

TEST_CASE("fsdp-ckpt diff finds a difference in any block of a large tensor") {
  constexpr int64_t kNumel = (9 << 20) / 4 + 3;  // two blocks of a shard, three of the comparison
  const ScratchFolder root;
  WholeCheckpoint content = small_content();
  content.add("x", StoredDType::kF32, {kNumel}, elements(counted_up(kNumel)));
  const auto a = write(root, "a", content, 1);
  content.bytes.back()[static_cast<size_t>(kNumel - 1) * 4] ^= 1;
  const auto b = write(root, "b", content, 3);
  const std::string lines = difference(root, a, b);
  CHECK(lines.starts_with("tensor 'x': 1 of 2359299 elements differ by at most "));
  CHECK(lines.find("first element 2359298: 2359299 and 235929") != std::string::npos);
}

TEST_CASE("fsdp-ckpt diff ends with 65 for a damaged checkpoint, even if it differs") {
  const ScratchFolder root;
  const auto a = write(root, "a", small_content(), 1);
  const auto b = write(root, "b", small_content(3), 3);
  for (const auto& entry : std::filesystem::directory_iterator(b)) {
    const auto size = static_cast<int64_t>(entry.file_size());
    flip_byte(entry.path(), size - 1);
    const std::string name = entry.path().filename().string();
    check_error(run_ckpt({"diff", a, b}), 65, name + " is damaged: ");
    check_error(run_ckpt({"diff", b, a}), 65, name + " is damaged: ");
    flip_byte(entry.path(), size - 1);
  }
  CHECK(difference(root, a, b) == "equal");
  const auto shard = b / "shard-00001-of-00003.safetensors";
  std::filesystem::rename(shard, root / "moved");
  check_error(run_ckpt({"diff", a, b}), 65, "shard-00001-of-00003.safetensors is missing");
  std::filesystem::create_symlink(root / "moved", shard);
  check_error(run_ckpt({"diff", a, b}), 65, "shard-00001-of-00003.safetensors is a link");
}

}  // namespace
}  // namespace fsdp
