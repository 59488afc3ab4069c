#include "io/checkpoint_manifest.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "io/manifest_reader.h"
#include "io/support/shard_files.h"
#include "io/support/small_manifest.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

TEST_CASE("A manifest comes back as it was written") {
  const ScratchFolder folder;
  const CheckpointManifest manifest = small_manifest();
  write_manifest(folder.path(), manifest);
  CHECK(read_manifest(folder.path()) == manifest);
  CHECK(read_whole(folder / kManifestName) == manifest_text(manifest));
}

TEST_CASE("A manifest of no tensors and no objects comes back") {
  const ScratchFolder folder;
  CheckpointManifest manifest = small_manifest();
  manifest.tensors.clear();
  manifest.objects.clear();
  manifest.conditions.clear();
  manifest.intervals.clear();
  manifest.finite = false;
  manifest.resumed_from = -1;
  set_intervals_entry(manifest);
  write_manifest(folder.path(), manifest);
  CHECK(read_manifest(folder.path()) == manifest);
}

TEST_CASE("Every bit of a value is kept") {
  const ScratchFolder folder;
  CheckpointManifest manifest = small_manifest();
  const double nan = std::bit_cast<double>(0xfff8000000000123);
  manifest.objects[0].values = {{"nan", nan}, {"zero", -0.0}, {"least", INT64_MIN}};
  write_manifest(folder.path(), manifest);
  const auto values = read_manifest(folder.path()).objects.at(0).values;
  CHECK(std::bit_cast<uint64_t>(std::get<double>(values.at("nan"))) == 0xfff8000000000123);
  CHECK(std::signbit(std::get<double>(values.at("zero"))));
  CHECK(std::get<int64_t>(values.at("least")) == INT64_MIN);
}

TEST_CASE("The text is one line for each tensor and ends with its hash") {
  const std::string text = manifest_text(small_manifest());
  CHECK(text.find("\n{\"name\": \"model/weight/a\", \"other_names\": [\"model/weight/tied\"], "
                  "\"dtype\": \"F32\", \"shape\": [\"4\", \"6\"], \"strides\": [\"1\", \"4\"], "
                  "\"granule\": \"4\"},\n") != std::string::npos);
  CHECK(text.find("\"lr\": {\"real\": \"0x1.0624dd2f1a9fcp-10\"}") != std::string::npos);
  const std::string body = body_of(text);
  CHECK(text == body + "\"hash\": \"" + hash_of(bytes_of(body)).to_string() + "\"\n}\n");
}

TEST_CASE("Each flipped byte and each truncation of both files is refused") {
  const ScratchFolder folder;
  write_manifest(folder.path(), small_manifest());
  for (const std::string_view name : {kManifestName, kIntervalsName}) {
    const std::string bytes = read_whole(folder / name);
    const auto check_refused = [&] {
      const auto error = io_error_of([&] { read_manifest(folder.path()); });
      REQUIRE(error);
      CHECK(error->code() == ExitCode::kCorruptData);
      CHECK(error->text().what.starts_with(std::string(name) + " is damaged: "));
      CHECK(error->text().where == (folder / name).string());
    };
    for (int64_t at = 0; at < std::ssize(bytes); ++at) {
      CAPTURE(at);
      flip_byte(folder / name, at);
      check_refused();
      flip_byte(folder / name, at);
    }
    for (size_t size = bytes.size(); size-- > 0;) {
      CAPTURE(size);
      std::filesystem::resize_file(folder / name, size);
      check_refused();
    }
    folder.write(name, bytes + "\n");
    check_refused();
    folder.write(name, bytes);
  }
  read_manifest(folder.path());
}

TEST_CASE("Links, folders, missing files and other folders are refused") {
  const ScratchFolder folder;
  write_manifest(folder.path(), small_manifest());
  const auto said = [&] { return text_of_error([&] { read_manifest(folder.path()); }); };
  for (const std::string& name : {std::string(kManifestName), std::string(kIntervalsName)}) {
    const auto path = folder / name;
    const std::string bytes = read_whole(path);
    std::filesystem::remove(path);
    CHECK(said() == name + " is missing (" + path.string() + "); hint: load an earlier checkpoint");
    std::filesystem::create_symlink(folder.write("real", bytes), path);
    CHECK(said().starts_with(name + " is a link ("));
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    CHECK(said().starts_with(name + " is a folder ("));
    std::filesystem::remove(path);
    folder.write(name, bytes);
  }
  const auto missing = io_error_of([&] { read_manifest(folder / "none"); });
  REQUIRE(missing);
  CHECK(missing->code() == ExitCode::kIoError);
}

TEST_CASE("The intervals of another checkpoint are refused") {
  const ScratchFolder folder;
  CheckpointManifest other = small_manifest();
  other.intervals[0].numel = 4;
  other.intervals[1] = {0, 1, 4, 20};
  write_manifest(folder.path(), small_manifest());
  const auto bytes = intervals_file(other.intervals);
  folder.write(kIntervalsName, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  CHECK(text_of_error([&] {
          read_manifest(folder.path());
        }).starts_with("intervals.safetensors is damaged: its hash is "));
}

TEST_CASE("A file of intervals has one tensor of four columns") {
  const auto said = [](std::string_view header, int64_t data) {
    const std::string bytes = file_of(header, data);
    return text_of_error([&] { parse_intervals(bytes_of(bytes), "i"); });
  };
  CHECK(said(R"({"intervals":{"dtype":"I64","shape":[1,4],"data_offsets":[0,32]}})", 32) ==
        "accepted");
  const std::string other =
      "the file must have exactly one tensor, 'intervals', of type I64 and shape [n, 4] (i)";
  CHECK(said("{}", 0) == other);
  CHECK(said(R"({"other":{"dtype":"I64","shape":[1,4],"data_offsets":[0,32]}})", 32) == other);
  CHECK(said(R"({"intervals":{"dtype":"U64","shape":[1,4],"data_offsets":[0,32]}})", 32) == other);
  CHECK(said(R"({"intervals":{"dtype":"I64","shape":[4],"data_offsets":[0,32]}})", 32) == other);
  CHECK(said(R"({"intervals":{"dtype":"I64","shape":[4,1],"data_offsets":[0,32]}})", 32) == other);
  CHECK(said(R"({"intervals":{"dtype":"I64","shape":[1,4],"data_offsets":[0,32]},)"
             R"("x":{"dtype":"U8","shape":[0],"data_offsets":[32,32]}})",
             32) == other);
  CHECK(said(R"({"__metadata__":{"a":"b"},)"
             R"("intervals":{"dtype":"I64","shape":[1,4],"data_offsets":[0,32]}})",
             32) == other);
}

TEST_CASE("Intervals that are wrong on disk are refused although their hash is right") {
  const ScratchFolder folder;
  CheckpointManifest manifest = small_manifest();
  std::string body = body_of(manifest_text(manifest));
  const ManifestFile before = manifest.files.back();
  manifest.intervals[1].begin = 4;
  manifest.intervals[1].numel = 20;
  set_intervals_entry(manifest);
  body = replaced(body, before.sum.to_string(), manifest.files.back().sum.to_string());
  folder.write(kManifestName, with_hash(body));
  const auto bytes = intervals_file(manifest.intervals);
  folder.write(kIntervalsName, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  CHECK(text_of_error([&] { read_manifest(folder.path()); }) ==
        "'model/weight/a' has elements [4, 8) twice (" + (folder / kIntervalsName).string() +
            "); hint: load an earlier checkpoint");
}

}  // namespace
}  // namespace fsdp
