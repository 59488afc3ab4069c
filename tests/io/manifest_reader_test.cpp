#include "io/manifest_reader.h"

#include <doctest/doctest.h>

#include "io/manifest_rules.h"
#include "io/support/shard_files.h"
#include "io/support/small_manifest.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

// Returns the error's `what` without "manifest.json is damaged: ", or "accepted".
std::string fault_in(const std::string& body) {
  constexpr std::string_view kDamaged = "manifest.json is damaged: ";
  const auto error = io_error_of([&] { parse_manifest(with_hash(body), "c/manifest.json"); });
  if (!error) return "accepted";
  CHECK(error->code() == ExitCode::kCorruptData);
  CHECK(error->text().where.starts_with("c/manifest.json"));
  std::string what = error->text().what;
  if (what.starts_with(kDamaged)) what.erase(0, kDamaged.size());
  return what;
}

struct Change {
  std::string_view from, to, expected;
};

TEST_CASE("Hostile members are refused by name") {
  const std::string body = body_of(manifest_text(small_manifest()));
  REQUIRE(fault_in(body) == "accepted");
  const Change changes[] = {
      {R"("version": 1)", R"("version": 2)", "the checkpoint has version 2, expected 1"},
      {R"("version": 1)", R"("version": "1")",
       "'version' of the manifest is text, expected the number 1"},
      {R"("version": 1,)", "", "the manifest lacks the member 'version'"},
      {R"("version": 1,)", R"("version": 1, "extra": 1,)",
       "the manifest has the unknown member 'extra'"},
      {R"("version": 1,)", R"("version": 1, "version": 1,)",
       "the key 'version' appears twice in one object"},
      {R"({"version": 1,)", R"([{"version": 1,)", "the text is an array, not an object"},
      {R"("sequence": "7")", R"("sequence": 7)",
       "'sequence' of the manifest is a number, expected an integer as text"},
      {R"("sequence": "7")", R"("sequence": "07")",
       "'sequence' of the manifest is '07', expected an integer as text"},
      {R"("sequence": "7")", R"("sequence": "0")", "the sequence is 0"},
      {R"("sequence": "7")", R"("sequence": "9223372036854775808")",
       "'sequence' of the manifest is '9223372036854775808', expected an integer as text"},
      {R"("sequence": "7")", R"("sequence": null)",
       "'sequence' of the manifest is null, expected an integer as text"},
      {R"("sequence": "7")", R"("sequence": {})",
       "'sequence' of the manifest is an object, expected an integer as text"},
      {R"("sequence": "7")", R"("sequence": ["7"])",
       "'sequence' of the manifest is an array, expected an integer as text"},
      {R"("step": "1200")", R"("step": "-1")", "the step is -1"},
      {R"("step": "1200")", R"("step": "999")", "step 999 was resumed from step 1000"},
      {R"("resumed_from": "1000")", R"("resumed_from": "-2")",
       "step 1200 was resumed from step -2"},
      {R"("run": "0)", R"("run": "g)",
       "the run 'g123456789abcdef0123456789abcdef' is not 32 hexadecimal digits"},
      {"T23:20:00Z", " 23:20:00Z",
       "the time '2026-11-26 23:20:00Z' is not as 2026-01-31T23:59:59Z"},
      {R"("finite": true)", R"("finite": "true")",
       "'finite' of the manifest is text, expected true or false"},
      {R"("finite": true)", R"("finite": 1)",
       "'finite' of the manifest is a number, expected true or false"},
      {R"("world_size": "2")", R"("world_size": "0")", "the world size is 0"},
      {R"("libtorch": "2.15.0")", R"("libtorch": 2.15)", "a number in the conditions"},
      {R"("libtorch": "2.15.0")", R"("libtorch": {})", "an object in the conditions"},
      {R"("conditions": {)", R"("conditions": "x", "c": {)",
       "'conditions' of the manifest is text, expected an object or an array"},
      {R"("conditions": {)", R"("conditions": [], "c": {)",
       "'conditions' of the manifest is an array, expected an object or an array"},
      {R"("objects": [)", R"("objects": ["x", )", "text in the objects"},
      {R"("objects": [)", R"("objects": [[], )", "an array in the objects"},
      {R"("name": "user")", R"("name": "optimizer")", "the object 'optimizer' occurs twice"},
      {R"("name": "user")", R"("name": "")", "an object has no name"},
      {R"("name": "user", )", "", "an object lacks the member 'name'"},
      {R"({"integer": "1200"})", R"("1200")", "text in the values of an object"},
      {R"({"integer": "1200"})", "{}", "a value of an object has no member"},
      {R"({"integer": "1200"})", R"({"integer": "1200", "text": "x"})",
       "a value of an object has more than one member"},
      {R"({"integer": "1200"})", R"({"number": "1200"})",
       "a value of an object has the unknown member 'number'"},
      {R"({"integer": "1200"})", R"({"real": "1200"})",
       "'real' of a value of an object is '1200', expected a hexadecimal number as text"},
      {R"({"integer": "1200"})", R"({"integer": true})",
       "'integer' of a value of an object is a boolean, expected an integer as text"},
  };
  for (const auto& [from, to, expected] : changes) {
    CAPTURE(to);
    CHECK(fault_in(replaced(body, from, to)) == expected);
  }
}

TEST_CASE("Hostile tensors and files are refused by name") {
  const std::string body = body_of(manifest_text(small_manifest()));
  const std::string a = "tensor 'model/weight/a': ";
  const std::string no_dense = a + "strides [4, 1] are not dense for shape [4, 6]";
  const std::string overflow = a + "F32 of shape [4294967296, 4294967296] has no size in bytes";
  const Change changes[] = {
      {R"("dtype": "F32")", R"("dtype": "F33")", "'dtype' of a tensor is 'F33', expected a dtype"},
      {R"("dtype": "F32")", R"("dtype": "F4")",
       "tensor 'model/weight/a': an element of F4 is not a whole byte"},
      {R"("shape": ["4", "6"])", R"("shape": "4")",
       "'shape' of a tensor is text, expected an object or an array"},
      {R"("shape": ["4", "6"])", R"("shape": [4, 6])", "a number in the shape of a tensor"},
      {R"("shape": ["4", "6"])", R"("shape": [["4"]])", "an array in the shape of a tensor"},
      {R"("shape": ["4", "6"])", R"("shape": ["4", "x"])",
       "the shape of a tensor has 'x', expected an integer"},
      {R"("shape": ["4", "6"])", R"("shape": ["4"])",
       "tensor 'model/weight/a': it has 2 strides for 1 dimensions"},
      {R"("shape": ["4", "6"])", R"("shape": ["4", "-6"])",
       "tensor 'model/weight/a': F32 of shape [4, -6] has no size in bytes"},
      {R"("shape": ["4", "6"])", R"("shape": ["4294967296", "4294967296"])", overflow},
      {R"("strides": ["1", "4"])", R"("strides": ["4", "1"])", no_dense},
      {R"("strides": ["1", "4"])", R"("strides": ["1", "5"])",
       "tensor 'model/weight/a': strides [1, 5] are not dense for shape [4, 6]"},
      {R"("strides": ["1", "4"])", R"("strides": ["1", "-4"])",
       "tensor 'model/weight/a': strides [1, -4] are not dense for shape [4, 6]"},
      {R"("strides": ["1", "4"])", R"("strides": ["0", "4"])",
       "tensor 'model/weight/a': strides [0, 4] are not dense for shape [4, 6]"},
      {R"("granule": "4")", R"("granule": "0")", "tensor 'model/weight/a': its granule is 0"},
      {R"(, "granule": "4")", "", "a tensor lacks the member 'granule'"},
      {R"("granule": "4")", R"("granule": "4", "grain": "4")",
       "a tensor has the unknown member 'grain'"},
      {R"("name": "scalar")", R"("name": "empty")", "the tensor name 'empty' occurs twice"},
      {R"("name": "scalar")", R"("name": "model/weight/tied")",
       "the tensor name 'model/weight/tied' occurs twice"},
      {R"("name": "scalar")", R"("name": "__metadata__")",
       "tensor '__metadata__': a tensor cannot have this name"},
      {R"(["model/weight/tied"])", R"(["x", "x"])", "the tensor name 'x' occurs twice"},
      {R"(["model/weight/tied"])", "[1]", "a number in the other names of a tensor"},
      {"shard-00000-of", "../shard-of", "'../shard-of-00002.safetensors' is not a plain file name"},
      {"shard-00000-of", ".shard-of", "'.shard-of-00002.safetensors' is not a plain file name"},
      {"shard-00000-of", "a b", "'a b-00002.safetensors' is not a plain file name"},
      {"shard-00000-of-00002.safetensors", "shard.sum",
       "file 'shard.sum' does not end with .safetensors"},
      {"shard-00000-of-00002.safetensors", "", "'' is not a plain file name"},
      {"shard-00000-of", "shard-00001-of", "file 'shard-00001-of-00002.safetensors' occurs twice"},
      {"intervals.safetensors", "others.safetensors", "the last file is not intervals.safetensors"},
      {R"("bytes": "4200")", R"("bytes": "-1")",
       "file 'shard-00000-of-00002.safetensors' has -1 bytes"},
      {R"("sum": "99aa06d3)", R"("sum": "99AA06D3)",
       "'sum' of a file is '99AA06D3014798d86001c324468d497f', expected a hash of 32 digits"},
  };
  for (const auto& [from, to, expected] : changes) {
    CAPTURE(to);
    CHECK(fault_in(replaced(body, from, to)) == expected);
  }
}

TEST_CASE("The stride of a dimension of size 1 and the strides of an empty tensor are free") {
  CheckpointManifest manifest = small_manifest();
  manifest.tensors[2].shape = {24, 1};
  manifest.tensors[2].strides = {1, 77};
  manifest.tensors[1].strides = {5, 9};
  CHECK(parse_manifest(manifest_text(manifest), "f").tensors == manifest.tensors);
}

TEST_CASE("Intervals must cover each element once and cut no granule") {
  struct Case {
    std::vector<ManifestInterval> intervals;
    std::string_view expected;
  };
  const ManifestInterval last{2, 1, 0, 24}, scalar{3, 0, 0, 1};
  const Case cases[] = {
      {{{0, 0, 0, 24}, last, scalar}, ""},
      {{{0, 0, 0, 8}, {0, 1, 4, 20}, last, scalar}, "'model/weight/a' has elements [4, 8) twice"},
      {{{0, 0, 0, 24}, {0, 1, 0, 24}, last, scalar}, "'model/weight/a' has elements [0, 24) twice"},
      {{{0, 0, 0, 8}, {0, 1, 12, 12}, last, scalar}, "'model/weight/a' lacks elements [8, 12)"},
      {{{0, 0, 4, 20}, last, scalar}, "'model/weight/a' lacks elements [0, 4)"},
      {{{0, 0, 0, 20}, last, scalar}, "'model/weight/a' lacks elements [20, 24)"},
      {{{0, 0, 0, 24}, scalar}, "'optimizer/exp_avg/a' lacks elements [0, 24)"},
      {{{0, 0, 0, 24}, last}, "'scalar' lacks elements [0, 1)"},
      {{}, "'model/weight/a' lacks elements [0, 24)"},
      {{{0, 0, 0, 6}, {0, 1, 6, 18}, last, scalar},
       "'model/weight/a' has elements [0, 6), which cut a granule of 4"},
      {{{0, 0, 0, 25}, last, scalar},
       "'model/weight/a' has 25 elements from 0, but only 24 in all"},
      {{{0, 0, 0, 8}, {0, 0, 8, INT64_MAX}, last, scalar},
       "'model/weight/a' has 9223372036854775807 elements from 8, but only 24 in all"},
      {{{0, 0, -4, 8}, last, scalar},
       "'model/weight/a' has 8 elements from -4, but only 24 in all"},
      {{{0, 0, 0, 24}, {0, 0, 24, 0}, last, scalar},
       "'model/weight/a' has an interval of 0 elements"},
      {{{0, 0, 0, 24}, {1, 0, 0, 1}, last, scalar},
       "'empty' has 1 elements from 0, but only 0 in all"},
      {{{0, 2, 0, 24}, last, scalar},
       "'model/weight/a' has elements in file 2, but there are 2 shards"},
      {{{0, -1, 0, 24}, last, scalar},
       "'model/weight/a' has elements in file -1, but there are 2 shards"},
      {{{0, 0, 0, 24}, scalar, last}, "interval 2 is not in the order of tensors and elements"},
      {{{0, 0, 8, 16}, {0, 0, 0, 8}, last, scalar},
       "interval 1 is not in the order of tensors and elements"},
      {{{0, 0, 0, 24}, last, scalar, {4, 0, 0, 1}},
       "interval 3 is of tensor 4, but there are 4 tensors"},
      {{{-1, 0, 0, 24}, last, scalar}, "interval 0 is of tensor -1, but there are 4 tensors"},
  };
  for (const auto& [intervals, expected] : cases) {
    CheckpointManifest manifest = small_manifest();
    CAPTURE(expected);
    CHECK(fault_of_intervals(manifest, intervals) == expected);
    manifest.intervals = intervals;
    set_intervals_entry(manifest);
    CHECK(text_of_error([&] { manifest_text(manifest); }) ==
          (expected.empty()
               ? "accepted"
               : "the manifest is invalid: " + std::string(expected) + " (manifest.json)"));
  }
}

TEST_CASE("The limits of a manifest are named by its writer and its reader") {
  const std::string body = body_of(manifest_text(small_manifest()));
  std::string many;
  for (int64_t i = 0; i <= kMaxManifestEntries; ++i) many += "\"" + std::to_string(i) + "\": \"\",";
  CHECK(fault_in(replaced(body, R"("strategy")", many + R"("strategy")")) ==
        "the manifest has more than 16384 values, conditions, files and other names");
  std::string dimensions = "[\"1\"";
  for (int64_t i = 0; i < 2 * kMaxManifestDimensions; ++i) dimensions += ",\"1\"";
  CHECK(fault_in(replaced(body, R"(["4", "6")", dimensions)) ==
        "the manifest has more than 524288 dimensions");
  CHECK(fault_in(replaced(body, "full-shard", std::string((2 << 20) + 1, 'x'))) ==
        "a string has more than 2097152 bytes");

  CheckpointManifest manifest = small_manifest();
  manifest.tensors[0].shape = std::vector<int64_t>(65, 1);
  manifest.tensors[0].strides = manifest.tensors[0].shape;
  CHECK(text_of_error([&] { manifest_text(manifest); }) ==
        "the manifest is invalid: tensor 'model/weight/a': it has more than 64 dimensions "
        "(manifest.json)");
  manifest = small_manifest();
  manifest.conditions["long"] = std::string((2 << 20) - 2, 'x');
  CHECK(parse_manifest(manifest_text(manifest), "f").conditions == manifest.conditions);
  manifest.conditions["long"] += "x";
  CHECK(text_of_error([&] { manifest_text(manifest); }) ==
        "the manifest is invalid: a text needs 2097153 bytes, at most 2097152 are allowed "
        "(manifest.json)");
  manifest.conditions["long"] = "\xff";
  CHECK(text_of_error([&] { manifest_text(manifest); }) ==
        "the manifest is invalid: a text is not UTF-8 (manifest.json)");
}

TEST_CASE("A manifest of 100,000 tensors comes back; one beyond the limit is refused") {
  const ScratchFolder folder;
  CheckpointManifest manifest = small_manifest();
  manifest.intervals.clear();
  manifest.tensors.clear();
  const auto add = [&](int64_t i) {
    manifest.tensors.push_back({.name = "model/weight/layers." + std::to_string(i) + ".mix.weight",
                                .shape = {64, 64},
                                .strides = {64, 1}});
    manifest.intervals.push_back({i, i % 2, 0, 4096});
  };
  for (int64_t i = 0; i < 100'000; ++i) add(i);
  set_intervals_entry(manifest);
  write_manifest(folder.path(), manifest);
  CHECK(read_manifest(folder.path()) == manifest);

  std::string tensors = "\"tensors\": [";
  for (int64_t i = 0; i <= kMaxManifestTensors; ++i) {
    tensors += i > 0 ? ",\n" : "\n";
    tensors +=
        R"({"name": ")" + std::to_string(i) +
        R"(", "other_names": [], "dtype": "U8", "shape": [], "strides": [], "granule": "1"})";
  }
  const std::string body = body_of(manifest_text(small_manifest()));
  CHECK(fault_in(replaced(body, "\"tensors\": [\n", tensors + ",\n")) ==
        "the manifest has more than 131072 tensors");
}

}  // namespace
}  // namespace fsdp
