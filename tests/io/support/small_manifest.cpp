#include "io/support/small_manifest.h"

#include <doctest/doctest.h>

#include <limits>

#include "io/manifest_reader.h"
#include "io/new_file.h"
#include "io/support/failing_disk.h"
#include "support/safetensors_bytes.h"

namespace fsdp {

CheckpointManifest small_manifest() {
  CheckpointManifest manifest{
      .run = "0123456789abcdef0123456789abcdef",
      .sequence = 7,
      .step = 1200,
      .resumed_from = 1000,
      .time = "2026-11-26T23:20:00Z",
      .finite = true,
      .world_size = 2,
      .conditions = {{"strategy", "full-shard"}, {"libtorch", "2.15.0"}},
      .objects = {{.name = "optimizer",
                   .kind = "AdamW",
                   .values = {{"lr", 1e-3},
                              {"worst", -std::numeric_limits<double>::infinity()},
                              {"step", int64_t{1200}},
                              {"note", std::string("é \"quoted\" \n")}}},
                  {.name = "user", .kind = "values", .values = {}}},
      .tensors = {{.name = "model/weight/a",
                   .other_names = {"model/weight/tied"},
                   .dtype = StoredDType::kF32,
                   .shape = {4, 6},
                   .strides = {1, 4},
                   .granule = 4},
                  {.name = "empty", .shape = {0, 3}, .strides = {3, 1}},
                  {.name = "optimizer/exp_avg/a", .shape = {24}, .strides = {1}},
                  {.name = "scalar", .dtype = StoredDType::kI64}},
      .files = {{.name = "shard-00000-of-00002.safetensors", .bytes = 4200, .sum = hash_of({})},
                {.name = "shard-00001-of-00002.safetensors", .bytes = 4100, .sum = {}},
                {.name = std::string(kIntervalsName)}},
      .intervals = {{0, 0, 0, 8}, {0, 1, 8, 16}, {2, 1, 0, 24}, {3, 0, 0, 1}}};
  set_intervals_entry(manifest);
  return manifest;
}

void set_intervals_entry(CheckpointManifest& manifest) {
  const auto bytes = intervals_file(manifest.intervals);
  manifest.files.back().bytes = std::ssize(bytes);
  manifest.files.back().sum = hash_of(bytes);
}

std::string with_hash(std::string_view body) { return std::string(body) + manifest_end(body); }

std::string body_of(const std::string& text) {
  return text.substr(0, text.rfind(kManifestHashBegin));
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void write_manifest(const std::filesystem::path& folder, const CheckpointManifest& manifest) {
  FailingDisk disk;
  write_new_file(disk, folder / kIntervalsName, intervals_file(manifest.intervals));
  write_new_file(disk, folder / kManifestName, bytes_of(manifest_text(manifest)));
}

}  // namespace fsdp
