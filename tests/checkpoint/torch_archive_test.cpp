// Reads weights in the formats of PyTorch. Python has written the files in records/
// (benchmarks/peers/record_torch_files.py); C++ writes the other files.
#include "io/torch_archive.h"

#include <caffe2/serialize/inline_container.h>
#include <fsdp/checkpoint.h>

#include "checkpoint/read_interval.h"
#include "fsdp/error.h"
#include "support/models.h"
#include "support/pickle_bytes.h"
#include "support/scratch_folder.h"
#include "support/source_tree.h"
#include "support/torch_ranks.h"
#include "support/zip_bytes.h"

namespace fsdp {
namespace {

using testing::run_torch_ranks;

using Names = std::vector<std::string>;

std::filesystem::path record(const std::string& name) {
  return source_file("tests/checkpoint/records") / name;
}

// Returns the elements of a tensor in row-major order, beginning at element `begin`.
std::vector<float> rows(const WeightsFile& file, const MappedTensor& tensor, int64_t begin,
                        int64_t numel) {
  std::vector<float> values(numel, -99);
  read_interval(file, tensor, {.strides = row_major(tensor.shape), .begin = begin, .numel = numel},
                [&](int64_t at, std::span<const float> piece) {
                  std::ranges::copy(piece, values.begin() + at);
                });
  return values;
}

TEST_CASE("what Python's torch.save writes is read: views, strides, every type of weights") {
  for (const std::string name : {"state_dict.pt", "dict.pt", "checkpoint.pt"}) {
    CAPTURE(name);
    CHECK(TorchArchive::is_one(record(name)));
    const TorchArchive archive(record(name));
    Names names;
    for (const MappedTensor& tensor : archive.tensors()) {
      CAPTURE(tensor.name);
      names.push_back(tensor.name);
      int64_t numel = 1;
      for (const int64_t size : tensor.shape) numel *= size;
      for (const int64_t begin : {int64_t{0}, numel / 3}) {
        const std::vector<float> values = rows(archive, tensor, begin, numel - begin);
        for (size_t i = 0; i < values.size(); ++i) {
          CHECK(values[i] == static_cast<float>(begin + static_cast<int64_t>(i) - 3));
        }
      }
    }
    CHECK(names == Names{"body.weight", "body.transposed", "body.cut", "body.expanded", "half",
                         "bfloat16", "double", "one", "none", "embedding.weight", "head.weight"});
    CHECK(archive.tensors()[1].strides == std::vector<int64_t>{1, 4});
    if (name == "checkpoint.pt") {
      REQUIRE(archive.notes().size() == 1);
      CHECK(archive.notes()[0].ends_with("checkpoint.pt: the weights are in its entry 'model'"));
    } else {
      CHECK(archive.notes().empty());
    }
  }
  const TorchArchive script(record("script.pt"));
  REQUIRE(script.tensors().size() == 4);
  CHECK(script.tensors()[2].name == "1.weight");
  CHECK(rows(script, script.tensors()[0], 0, 6) == std::vector<float>{-3, -2, -1, 0, 1, 2});
  CHECK(TorchArchive(record("parameter.pt")).tensors()[0].shape == std::vector<int64_t>{2, 3});
  CHECK(TorchArchive(record("buffers.pt")).tensors().back().dtype == StoredDType::kI64);
}

TEST_CASE(
    "tensors with attributes of Python's, and types without storages of their own, are read") {
  const TorchArchive attributes(record("attributes.pt"));
  REQUIRE(attributes.tensors().size() == 3);
  CHECK(attributes.notes().empty());
  CHECK(rows(attributes, attributes.tensors()[0], 0, 6) == std::vector<float>{-3, -2, -1, 0, 1, 2});
  CHECK(rows(attributes, attributes.tensors()[1], 0, 4) == std::vector<float>{-3, -2, -1, 0});
  CHECK(rows(attributes, attributes.tensors()[2], 0, 2) == std::vector<float>{-3, -2});
  const TorchArchive types(record("types.pt"));
  REQUIRE(types.tensors().size() == 3);
  CHECK(types.tensors()[1].dtype == StoredDType::kU16);
  CHECK(types.tensors()[1].bytes.size() == 8);
  CHECK(types.tensors()[2].dtype == StoredDType::kF8E4M3);
  CHECK(types.tensors()[2].bytes.size() == 5);
}

TEST_CASE("entries that are no tensors are left out and named, and nothing of them is run") {
  const TorchArchive values(record("other_values.pt"));
  REQUIRE(values.tensors().size() == 1);
  CHECK(rows(values, values.tensors()[0], 0, 6) == std::vector<float>{-3, -2, -1, 0, 1, 2});
  REQUIRE(values.notes().size() == 1);
  CHECK(values.notes()[0].ends_with(
      "other_values.pt: entries that are not tensors are left out: 'args' (argparse.Namespace), "
      "'best' (numpy._core.multiarray.scalar), 'table' (numpy._core.multiarray._reconstruct), "
      "'seen' (__builtin__.set), 'dtype' (torch.float16), 'path' (pathlib.PurePosixPath), 'large' "
      "(a number or None), 'groups' (collections.defaultdict) and 4 more"));
}

TEST_CASE("a script's dict gives its state_dict, also where tensors stand beside it") {
  const TorchArchive script(record("imagenet.pt"));
  CHECK(script.tensors().size() == 11);
  CHECK(script.tensors()[0].name == "body.weight");
  REQUIRE(script.notes().size() == 1);
  CHECK(script.notes()[0].find(
            "imagenet.pt: the weights are in its entry 'state_dict'; its other entries are left "
            "out: 'best_acc1' (a tensor), 'args' (argparse.Namespace), ") != std::string::npos);
}

TEST_CASE("an archive without check sums is read with a note") {
  const TorchArchive unchecked(record("unchecked.pt"));
  REQUIRE(unchecked.notes().size() == 1);
  CHECK(unchecked.notes()[0].ends_with(
      "unchecked.pt has no check sums: damage to it is not detected"));
  CHECK_NOTHROW(unchecked.check_sums(0, 1));
}

std::string refusal(const std::filesystem::path& path) {
  CHECK(TorchArchive::is_one(path));
  try {
    const TorchArchive archive(path);
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    CHECK(error.text().where == path.string());
    CHECK(!error.text().hint.empty());
    return error.text().what;
  }
  return "accepted";
}

TEST_CASE("what is no state_dict of plain tensors is refused by name") {
  CHECK(refusal(record("module.pt")) ==
        "the file holds a 'torch.nn.modules.batchnorm.BatchNorm1d', not a state_dict");
  CHECK(refusal(record("quantised.pt")) ==
        "tensor 'w' is made by 'torch._utils._rebuild_qtensor', which is not supported");
  CHECK(refusal(record("sparse.pt")) ==
        "tensor 'w' is made by 'torch._utils._rebuild_sparse_tensor', which is not supported");
  CHECK(refusal(record("negative.pt")) ==
        "tensor 'w' has its 'neg' bit set, which is not supported");
  CHECK(refusal(record("conjugate.pt")) ==
        "tensor 'w' has its 'conj' bit set, which is not supported");
  CHECK(refusal(record("legacy.pt")) ==
        "the file is a plain pickle, as torch.save wrote before PyTorch 1.6");
  CHECK(refusal(record("protocol4.pt")) == "the pickle has protocol 4, expected 2");
  CHECK(refusal(record("list.pt")) == "the file holds neither a state_dict nor a module");
  CHECK(refusal(record("no_tensors.pt")).starts_with("the file's dict holds no tensors"));
}

struct Record {
  std::string name, bytes;
  bool compressed = false;
};

void write_archive(const std::filesystem::path& path, const std::vector<Record>& records) {
  caffe2::serialize::PyTorchStreamWriter writer(path.string());
  for (const Record& each : records) {
    writer.writeRecord(each.name, each.bytes.data(), each.bytes.size(), each.compressed);
  }
  writer.writeEndOfFile();
}

TEST_CASE("a tensor that is no view of its record, and records that are not plain, are refused") {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "m.pt";
  const std::string floats(24, '\0');
  const auto said = [&](const std::string& pickle, const std::vector<Record>& more) {
    std::vector<Record> records{{"data.pkl", pickle}};
    records.insert(records.end(), more.begin(), more.end());
    write_archive(path, records);
    return refusal(path);
  };
  const std::vector<Record> data{{"data/0", floats}};
  CHECK(said(pickled_state_dict({6, 0, {2, 3}, {3, 1}}), data) == "accepted");
  CHECK(said(pickled_state_dict({6, 2, {4}, {1}}), data) == "accepted");
  CHECK(said(pickled_state_dict({6, 3, {4}, {1}}), data) ==
        "tensor 'w' of shape [4], strides [1] and offset 3 exceeds its storage of 6 elements");
  CHECK(
      said(pickled_state_dict({6, 0, {2, 3}, {4, 1}}), data) ==
      "tensor 'w' of shape [2, 3], strides [4, 1] and offset 0 exceeds its storage of 6 elements");
  CHECK(said(pickled_state_dict({6, 0, {2}, {-1}}), data) ==
        "tensor 'w' of shape [2], strides [-1] and offset 0 exceeds its storage of 6 elements");
  CHECK(said(pickled_state_dict({6, 0, {2, 3}, {1}}), data) ==
        "tensor 'w' has an invalid shape, strides or offset");
  CHECK(said(pickled_state_dict({6, 0, {-2}, {1}}), data) ==
        "tensor 'w' has an invalid shape, strides or offset");
  CHECK(said(pickled_state_dict({6, -1, {2}, {1}}), data) ==
        "tensor 'w' has an invalid shape, strides or offset");
  CHECK(said(pickled_state_dict({7, 0, {2}, {1}}), data) ==
        "tensor 'w' needs a storage of 28 bytes, but its record has 24");
  CHECK(said(pickled_state_dict({6, 0, {2}, {1}}), {}) == "the archive has no record 'data/0'");
  CHECK(said(pickled_state_dict({6, 0, {2}, {1}}), {{"data/0", floats, /*compressed=*/true}}) ==
        "record 'data/0' is compressed");
  CHECK(said(pickled_state_dict({6, 0, {2}, {1}}), {{"data/0", floats}, {"byteorder", "big"}}) ==
        "the archive's byte order is 'big'");
  CHECK(said("\x80\x02}.", {{"byteorder", "little"}})
            .starts_with("the file's dict holds no tensors"));
  write_archive(path, {{"data/0", floats}});
  CHECK(refusal(path) == "the file is a zip archive without a record 'data.pkl'");
  const std::vector<ZipPart> parts{{"a/data.pkl", pickled_state_dict({6, 0, {2}, {1}})},
                                   {"a/data/0", floats}};
  const auto with_version = [&](const std::string& version) {
    std::vector<ZipPart> all = parts;
    if (!version.empty()) all.push_back({"a/version", version});
    folder.write("m.pt", zip_of(all));
    return refusal(path);
  };
  CHECK(with_version("3\n") == "accepted");
  CHECK(with_version("10") == "accepted");
  CHECK(with_version("") == "the archive has no record 'version'");
  CHECK(with_version("11") == "the archive has version '11', expected 1 to 10");
  CHECK(with_version("new") == "the archive has version 'new', expected 1 to 10");
}

TEST_CASE("each part of the check sums is some rank's, and a changed byte of a record is found") {
  const ScratchFolder folder;
  const std::string whole = read_whole(record("state_dict.pt"));
  const size_t at = whole.find(std::string("\x00\x00\x40\xc0", 4));  // -3, of some tensor
  REQUIRE(at != std::string::npos);
  std::string changed = whole;
  changed[at] = 1;
  const TorchArchive sound(record("state_dict.pt"));
  const TorchArchive damaged(folder.write("m.pt", changed));
  for (const int parts : {1, 2, 3, 16}) {
    int found = 0;
    for (int part = 0; part < parts; ++part) {
      CHECK_NOTHROW(sound.check_sums(part, parts));
      try {
        damaged.check_sums(part, parts);
      } catch (const IoError& error) {
        CHECK(error.text().what.find("is damaged: its check sum is") != std::string::npos);
        ++found;
      }
    }
    CHECK(found == 1);
  }
}

TEST_CASE(
    "every truncation of an archive is refused, and every changed byte is, or changes nothing") {
  const ScratchFolder folder;
  const TorchArchive sound(record("state_dict.pt"));
  const std::string whole = read_whole(record("state_dict.pt"));
  for (size_t size = 4; size < whole.size(); size += 13) {
    const std::filesystem::path path =
        folder.write("cut.pt", std::string_view(whole).substr(0, size));
    CHECK(refusal(path) != "accepted");
  }
  for (size_t at = 4; at < whole.size(); at += 3) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    const std::filesystem::path path = folder.write("changed.pt", changed);
    if (!TorchArchive::is_one(path)) continue;
    try {
      const TorchArchive archive(path);
      archive.check_sums(0, 1);
      REQUIRE(archive.tensors().size() == sound.tensors().size());
      for (size_t i = 0; i < sound.tensors().size(); ++i) {
        const MappedTensor &is = archive.tensors()[i], &should = sound.tensors()[i];
        CHECK(is.name == should.name);
        CHECK(is.shape == should.shape);
        CHECK(is.strides == should.strides);
        CHECK(std::ranges::equal(is.bytes, should.bytes));
      }
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCorruptData);
    }
  }
}

using testing::Chain;
using Parameters = std::map<std::string, at::Tensor>;

void check_archive_loads(int world, const std::filesystem::path& path, const Parameters& expected) {
  run_torch_ranks(world, [&](const Mesh& mesh) {
    Unit<Chain> model = testing::build_seeded(99, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    CHECK(load_weights(engine, path).notes.empty());
    for (const auto& [fqn, value] : testing::full_parameters(engine)) {
      CAPTURE(fqn);
      CHECK(testing::bit_equal(value, expected.at(fqn)));
    }
  });
}

TEST_CASE("a model that torch::save wrote loads on any number of ranks, bit by bit") {
  const ScratchFolder folder;
  Unit<Chain> plain = testing::build_seeded(7, [] { return Unit<Chain>(); });
  torch::save(plain, (folder / "model.pt").string());
  const Parameters saved = testing::plain_parameters(*plain);
  for (const int world : {1, 2, 5}) check_archive_loads(world, folder / "model.pt", saved);
}

TEST_CASE("a folder with a pytorch_model.bin alone is read, and beside safetensors it is not") {
  const ScratchFolder folder;
  Unit<Chain> plain = testing::build_seeded(7, [] { return Unit<Chain>(); });
  torch::save(plain, (folder / "pytorch_model.bin").string());
  check_archive_loads(2, folder.path(), testing::plain_parameters(*plain));
  folder.write("model.safetensors", "none");
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<Chain> model = testing::build_seeded(9, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    CHECK_THROWS_WITH_AS(load_weights(engine, folder.path()),
                         doctest::Contains("model.safetensors"), IoError);
  });
}

TEST_CASE("a value that is not finite is refused, and other names and shapes, as in safetensors") {
  const ScratchFolder folder;
  Unit<Chain> plain = testing::build_seeded(7, [] { return Unit<Chain>(); });
  {
    const torch::NoGradGuard no_grad;
    plain->head->weight.flatten()[77] = std::numeric_limits<float>::infinity();
  }
  torch::save(plain, (folder / "model.pt").string());
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<Chain> model = testing::build_seeded(9, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    CHECK_THROWS_WITH_AS(load_weights(engine, folder / "model.pt"),
                         doctest::Contains("tensor 'head.weight' is not finite: element 77 is inf"),
                         IoError);
    CHECK_THROWS_WITH_AS(load_weights(engine, record("state_dict.pt")),
                         doctest::Contains("tensor 'embedding.weight' has shape [3, 2], the model "
                                           "expects [17, 8]"),
                         IoError);
  });
}

// A model in which two names refer to one parameter. The engine has this parameter once.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : embedding(3, 2) {
    register_module("embedding", embedding);
    transposed = register_parameter("transposed", at::empty_strided({4, 3}, {1, 4}).zero_());
  }
  at::Tensor forward(const at::Tensor& x) { return embedding(x); }
  torch::nn::Embedding embedding;
  at::Tensor transposed;
};
TORCH_MODULE(Tied);

TEST_CASE("a tied weight's other name needs no word, and the strides of a parameter are its own") {
  for (const int world : {1, 2, 3}) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<Tied> model = testing::build_seeded(9, [] { return Unit<Tied>(); });
      Engine engine(model, mesh);
      const LoadReport report = load_weights(
          engine, record("state_dict.pt"),
          {.parameter_name =
               [](std::string_view stored) {
                 return stored == "body.transposed" ? "transposed" : std::string(stored);
               },
           .may_be_unused = [](std::string_view name) { return name != "head.weight"; }});
      CHECK(report.unused.size() == 9);  // head.weight and embedding.weight are one parameter
      engine.visit_full_parameters([&](std::string_view, const at::Tensor& value) {
        const at::Tensor expected = torch::arange(value.numel(), torch::kFloat) - 3;
        CHECK(testing::bit_equal(value.contiguous().flatten(), expected));
      });
    });
  }
}

}  // namespace
}  // namespace fsdp
