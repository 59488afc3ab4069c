// Runs the readers of this layer on the same hostile bytes.
#include "io/support/byte_readers.h"

#include <doctest/doctest.h>

#include <vector>

#include "io/support/small_manifest.h"
#include "support/hostile_bytes.h"
#include "support/safetensors_bytes.h"
#include "support/source_tree.h"

namespace fsdp {
namespace {

// Returns the sample of the reader "manifest".
std::string manifest_parts(const CheckpointManifest& manifest) {
  std::string parts = body_of(manifest_text(manifest)) + '\0';
  for (const ManifestInterval& each : manifest.intervals) {
    for (const int64_t value : {each.tensor, each.file, each.begin, each.numel}) {
      parts += static_cast<char>(value);
    }
  }
  return parts;
}

const std::vector<SampledReader>& sampled_readers() {
  static const std::vector<SampledReader> readers = {
      {byte_reader("safetensors"),
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("é":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
               8)},
      {byte_reader("index"),
       R"({"metadata":{"total_size":24},"weight_map":{"é":"m-1","b":"m-2"}})"},
      {byte_reader("manifest"), manifest_parts(small_manifest())},
      {byte_reader("json"), R"({"é": [1, -2, 2.5e3, true, null, {"a": "b"}]})"},
  };
  return readers;
}

TEST_CASE("The samples are accepted; empty files are refused") {
  for (const SampledReader& each : sampled_readers()) check_sample_and_empty(each);
}

TEST_CASE("Every truncation is refused") {
  for (const SampledReader& each : sampled_readers()) check_truncations(each);
}

TEST_CASE("A NUL, a byte order mark or invalid UTF-8 is refused wherever it stands") {
  for (const SampledReader& each : sampled_readers()) check_foreign_bytes(each);
}

TEST_CASE("Every byte may change: what is made of it is sound, or it is refused") {
  for (const SampledReader& each : sampled_readers()) check_changed_bytes(each);
}

TEST_CASE("Inputs that were once a finding, or nearly, stay what they are") {
  CHECK(check_kept_inputs(byte_readers(), source_file("tests/io/records/hostile")) > 0);
}

}  // namespace
}  // namespace fsdp
