#include "io/support/byte_readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/json_text.h"
#include "io/manifest_reader.h"
#include "io/manifest_rules.h"
#include "io/pickle.h"
#include "io/safetensors_header.h"
#include "io/safetensors_index.h"
#include "io/torch_archive.h"
#include "support/safetensors_bytes.h"

namespace fsdp {
namespace {

Verdict read_safetensors(std::string_view bytes) {
  return verdict_of([&] {
    const SafetensorsLayout layout =
        parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "f");
    int64_t header_bytes = 0;
    for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | uint8_t(bytes[i]);
    const int64_t data_begin = kSafetensorsPrefixBytes + header_bytes;
    const auto header = nlohmann::json::parse(bytes.substr(kSafetensorsPrefixBytes, header_bytes));
    demand(header.size() == layout.tensors.size() + header.count(kMetadataKey),
           "a tensor that the header does not name");
    int64_t at = data_begin;
    for (const StoredTensor& tensor : layout.tensors) {
      demand(tensor.offset_bytes == at, "a tensor that does not follow the one before it");
      const auto count = count_elements(tensor.dtype, tensor.shape);
      demand(count && count->numel == tensor.numel && count->nbytes == tensor.nbytes,
             "a size that is not the shape's");
      const nlohmann::json& said = header.at(tensor.name);
      demand(said.at("dtype") == name_of(tensor.dtype) && said.at("shape") == tensor.shape &&
                 said.at("data_offsets").at(0) == at - data_begin &&
                 said.at("data_offsets").at(1) == at - data_begin + tensor.nbytes,
             "a tensor that is not what the header says");
      at += tensor.nbytes;
    }
    demand(at == std::ssize(bytes), "tensors that do not end with the file");
  });
}

// The first two bytes are the size of the data, and the rest is a header. This target adds the
// header's size, so that every change of the header alone is still a complete file.
Verdict read_header(std::string_view bytes) {
  if (bytes.size() < 2) return Verdict::kRefused;
  const int64_t data_bytes = uint8_t(bytes[0]) | uint8_t(bytes[1]) << 8;
  return read_safetensors(file_of(bytes.substr(2), data_bytes));
}

Verdict read_index(std::string_view bytes) {
  return verdict_of([&] {
    for (const auto& [tensor, file] : parse_safetensors_index(bytes, "f").file_of_tensor) {
      demand(!file.empty() && file.find('/') == file.npos && file != "." && file != "..",
             "a file name that leads elsewhere");
    }
  });
}

Verdict read_json(std::string_view bytes) {
  const Verdict verdict = verdict_of([&] {
    const nlohmann::json document = parse_json({.text = bytes, .file = "f"});
    demand(document == nlohmann::json::parse(bytes), "a document with other values");
  });
  if (verdict == Verdict::kRefused && last_refusal().find("broken JSON") != std::string::npos) {
    demand(!nlohmann::json::accept(bytes), "sound JSON called broken");
  }
  return verdict;
}

Verdict read_pickle(std::string_view bytes) {
  return verdict_of([&] {
    const Pickle pickle = parse_pickle(std::as_bytes(std::span(bytes.data(), bytes.size())), "f");
    demand(pickle.root != nullptr, "a pickle of nothing");
    for (const PickleValue& value : pickle.values) {
      using Kind = PickleValue::Kind;
      const bool has_tensor = value.kind == Kind::kTensor || value.kind == Kind::kStorage;
      demand(has_tensor == (value.tensor != nullptr), "a tensor that is none");
      demand(value.kind != Kind::kDict || value.items.size() % 2 == 0, "a key without a value");
      demand(value.kind != Kind::kObject || value.items.size() <= 1, "an object of two states");
      if (has_tensor) {
        demand(std::ssize(value.tensor->shape) <= kMaxDimensions, "too many dimensions");
      }
    }
  });
}

Verdict read_archive(std::string_view bytes) {
  return verdict_of([&] {
    const TorchLayout layout =
        parse_torch_archive(std::as_bytes(std::span(bytes.data(), bytes.size())), "f");
    for (const auto& [name, record] : layout.records.records) {
      if (layout.has_check_sums && record.unread.empty()) check_record(record, name, "f");
    }
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    for (const MappedTensor& tensor : layout.tensors) {
      const auto count = count_elements(tensor.dtype, tensor.shape);
      demand(count && tensor.strides.size() == tensor.shape.size(), "a tensor without a size");
      if (count->numel == 0) continue;
      int64_t last = 0;
      for (size_t i = 0; i < tensor.shape.size(); ++i) {
        last += (tensor.shape[i] - 1) * tensor.strides[i];
      }
      demand(std::ssize(tensor.bytes) == (last + 1) * bits_of(tensor.dtype) / 8 &&
                 tensor.bytes.data() >= begin &&
                 tensor.bytes.data() + tensor.bytes.size() <= begin + bytes.size(),
             "a tensor that lies outside of the file");
    }
  });
}

// The bytes are a manifest without its hash, a NUL, and four bytes for each interval. This target
// adds the hash, so that a change of the text does not end there.
Verdict read_manifest_parts(std::string_view bytes) {
  const size_t nul = bytes.find('\0');
  const std::string_view body = bytes.substr(0, nul);
  const std::string_view rows = nul == bytes.npos ? "" : bytes.substr(nul + 1);
  return verdict_of([&] {
    CheckpointManifest manifest = parse_manifest(std::string(body) + manifest_end(body), "f");
    if (rows.size() % 4 != 0) throw IoError(ExitCode::kCorruptData, {.what = "half an interval"});
    for (size_t i = 0; i < rows.size(); i += 4) {
      manifest.intervals.push_back(
          {int8_t(rows[i]), int8_t(rows[i + 1]), int8_t(rows[i + 2]), int8_t(rows[i + 3])});
    }
    demand(parse_intervals(intervals_file(manifest.intervals), "f") == manifest.intervals,
           "intervals that change on disk");
    const std::string fault = fault_of_intervals(manifest, manifest.intervals);
    if (!fault.empty()) throw IoError(ExitCode::kCorruptData, {.what = fault});
    int64_t held = 0, needed = 0;
    for (const ManifestInterval& interval : manifest.intervals) held += interval.numel;
    for (const ManifestTensor& tensor : manifest.tensors) needed += tensor.numel();
    demand(held == needed, "intervals that do not have each element once");
    for (const ManifestFile& file : manifest.files) {
      demand(file.name.find('/') == file.name.npos && file.name[0] != '.',
             "a file name that leads elsewhere");
    }
    // The texts are compared, because a value that is not a number differs from itself.
    const std::string text = manifest_text(manifest);
    CheckpointManifest again = parse_manifest(text, "f");
    again.intervals = manifest.intervals;
    demand(manifest_text(again) == text, "a manifest that does not come back");
  });
}

constexpr ByteReader kReaders[] = {
    {"safetensors", read_safetensors, 1},
    {"header", read_header, 1},
    {"index", read_index, 1},
    {"json", read_json, 1},
    {"pickle", read_pickle, 512},
    {"archive", read_archive, 512},
    {"manifest", read_manifest_parts, 1},
};

}  // namespace

std::span<const ByteReader> byte_readers() { return kReaders; }

const ByteReader& byte_reader(std::string_view name) {
  const auto at = std::ranges::find(kReaders, name, &ByteReader::name);
  demand(at != std::end(kReaders), fmt::format("no reader is called {}", name));
  return *at;
}

}  // namespace fsdp
