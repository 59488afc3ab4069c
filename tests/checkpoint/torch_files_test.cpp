// Loads PyTorch's weights into an existing engine, as users do: buffers, shards, names that another
// program has changed, and copies of tied weights.
#include <fsdp/checkpoint.h>

#include <fstream>

#include "fsdp/error.h"
#include "support/model_files.h"
#include "support/models.h"
#include "support/pickle_bytes.h"
#include "support/scratch_folder.h"
#include "support/source_tree.h"
#include "support/torch_ranks.h"
#include "support/zip_bytes.h"

namespace fsdp {
namespace {

using testing::bit_equal;
using testing::run_torch_ranks;
using Names = std::vector<std::string>;

std::filesystem::path torch_file(const std::string& name) {
  return source_file("tests/checkpoint/records") / name;
}

std::string bytes_of(const at::Tensor& values) {
  const at::Tensor whole = values.detach().to(at::kFloat).contiguous();
  return {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()};
}

// Writes a state_dict in the format of torch.save.
void write_state_dict(const std::filesystem::path& path,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::string pickle = "\x80\x02}";
  std::vector<ZipPart> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, value] = tensors[i];
    std::vector<int> shape, strides;
    for (int64_t d = 0; d < value.dim(); ++d) {
      shape.push_back(static_cast<int>(value.size(d)));
      strides.push_back(static_cast<int>(value.contiguous().stride(d)));
    }
    const std::string key = std::to_string(i);
    pickle += pickled_text(name) +
              pickled_tensor({.numel = static_cast<int>(value.numel()),
                              .shape = shape,
                              .strides = strides,
                              .record = key}) +
              "s";
    parts.push_back({"a/data/" + key, bytes_of(value)});
  }
  parts.insert(parts.begin(), {"a/data.pkl", pickle + "."});
  parts.push_back({"a/version", "3\n"});
  std::ofstream(path, std::ios::binary) << zip_of(parts);
}

std::string refusal(Engine& engine, const std::filesystem::path& path,
                    const LoadOptions& options = {}) {
  try {
    load_weights(engine, path, options);
  } catch (const Error& error) {
    return error.text().what + "; " + error.text().hint;
  }
  return "accepted";
}

struct NormedImpl : torch::nn::Module {
  NormedImpl() : norm(3), body(3, 2) {
    register_module("norm", norm);
    register_module("body", body);
    mask = register_buffer("mask", at::zeros({2}, at::kBool));
  }
  at::Tensor forward(const at::Tensor& x) { return body(norm(x)); }
  torch::nn::BatchNorm1d norm;
  Unit<torch::nn::Linear> body;
  at::Tensor mask;
};
TORCH_MODULE(Normed);

void change(NormedImpl& model) {
  const at::NoGradGuard no_grad;
  model.norm->running_mean.copy_(at::arange(3));
  model.norm->running_var.fill_(7);
  model.norm->num_batches_tracked.fill_(5);
  model.mask.fill_(true);
}

TEST_CASE("what torch::save wrote inside Gathered loads with its buffers, on any number of ranks") {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "model.pt";
  for (const int world : {1, 2, 3}) {
    std::map<std::string, at::Tensor> saved;
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<Normed> model = testing::build_seeded(3, [] { return Unit<Normed>(); });
      Engine engine(model, mesh);
      change(*model);
      const Gathered whole(engine);
      if (mesh.rank() != 0) return;
      torch::save(model, path.string());
      for (const auto& item : model->named_parameters()) saved[item.key()] = item.value().clone();
    });
    run_torch_ranks(world % 3 + 1, [&](const Mesh& mesh) {
      Unit<Normed> model = testing::build_seeded(9, [] { return Unit<Normed>(); });
      Engine engine(model, mesh);
      const LoadReport report = load_weights(engine, path);
      CHECK(report.notes.empty());
      for (const auto& [fqn, value] : testing::full_parameters(engine)) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, saved.at(fqn)));
      }
      CHECK(model->norm->running_mean.equal(at::arange(3, at::kFloat)));
      CHECK(model->norm->running_var.equal(at::full({3}, 7.0F)));
      CHECK(model->norm->num_batches_tracked.item<int64_t>() == 5);
      CHECK(model->mask.all().item<bool>());
    });
  }
}

TEST_CASE("buffers are Python's too; other types, shapes and names of them are refused by name") {
  run_torch_ranks(2, [&](const Mesh& mesh) {
    Unit<torch::nn::BatchNorm1d> model(3);
    Engine engine(model, mesh);
    CHECK(load_weights(engine, torch_file("buffers.pt")).notes.empty());
    CHECK(model->num_batches_tracked.item<int64_t>() == 1);
  });
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "m.pt";
  const at::Tensor three = at::ones({3});
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<torch::nn::BatchNorm1d> model(3);
    Engine engine(model, mesh);
    const auto said = [&](const std::string& name, const at::Tensor& value) {
      write_state_dict(path, {{"weight", three}, {"bias", three}, {name, value}});
      return refusal(engine, path);
    };
    CHECK(said("running_mean", at::ones({2}))
              .starts_with("tensor 'running_mean' has shape [2], the model expects [3]"));
    CHECK(said("num_batches_tracked", at::ones({}))
              .starts_with(
                  "tensor 'num_batches_tracked' has type F32, the model's buffer has type I64"));
    CHECK(said("running", three)
              .starts_with("the weights have 1 tensor that the model does not have: 'running'"));
    const at::Tensor before = model->running_mean.clone();
    write_state_dict(path, {{"weight", three}, {"running_mean", 5 * three}});
    CHECK(refusal(engine, path).starts_with("the weights lack 1 tensor of the model"));
    CHECK(model->running_mean.equal(before));
    write_state_dict(path, {{"weight", three}, {"bias", three}, {"running_mean", 5 * three}});
    CHECK(
        load_weights(engine, path).notes ==
        Names{"the weights lack 2 buffers, left unchanged: 'running_var', 'num_batches_tracked'"});
    CHECK(model->running_mean.equal(5 * three));
  });
}

TEST_CASE("shards of pytorch_model.bin are read by their index, which they must follow") {
  const ScratchFolder folder;
  const at::Tensor weight = testing::values({2, 3}, 1), bias = testing::values({2}, 2);
  write_state_dict(folder / "pytorch_model-00001-of-00002.bin", {{"weight", weight}});
  write_state_dict(folder / "pytorch_model-00002-of-00002.bin", {{"bias", bias}});
  const auto write_index = [&](const std::string& file_of_bias) {
    folder.write("pytorch_model.bin.index.json",
                 R"({"metadata":{"total_size":32},"weight_map":{)"
                 R"("weight":"pytorch_model-00001-of-00002.bin","bias":")" +
                     file_of_bias + "\"}}");
  };
  write_index("pytorch_model-00002-of-00002.bin");
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<torch::nn::Linear> model(3, 2);
      Engine engine(model, mesh);
      CHECK(load_weights(engine, folder.path()).notes.empty());
      CHECK(bit_equal(testing::full_parameters(engine).at("weight"), weight));
      CHECK(bit_equal(testing::full_parameters(engine).at("bias"), bias));
    });
  }
  write_index("pytorch_model-00001-of-00002.bin");
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<torch::nn::Linear> model(3, 2);
    Engine engine(model, mesh);
    CHECK(refusal(engine, folder.path())
              .starts_with("the index lists tensor 'bias' in pytorch_model-00001-of-00002.bin, but "
                           "the file does not hold it"));
    write_index("../elsewhere.bin");
    CHECK(refusal(engine, folder.path()).find("is not a plain file name") != std::string::npos);
  });
}

TEST_CASE("a beginning that all names share is named with the option that removes it") {
  const ScratchFolder folder;
  for (const std::string prefix : {"module.", "model.", "module._orig_mod."}) {
    CAPTURE(prefix);
    write_state_dict(folder / "m.pt",
                     {{prefix + "weight", at::ones({2, 3})}, {prefix + "bias", at::ones({2})}});
    run_torch_ranks(1, [&](const Mesh& mesh) {
      Unit<torch::nn::Linear> model(3, 2);
      Engine engine(model, mesh);
      CHECK(refusal(engine, folder / "m.pt") ==
            "the weights lack 2 tensors of the model: 'weight', 'bias'; set "
            "LoadOptions::strip_prefix = \"" +
                prefix + "\": the file has names such as '" + prefix + "weight'");
      const LoadReport report = load_weights(engine, folder / "m.pt", {.strip_prefix = prefix});
      CHECK(report.renamed.size() == 2);
      CHECK(testing::full_parameters(engine).at("bias").equal(at::ones({2})));
      CHECK(refusal(engine, folder / "m.pt", {.strip_prefix = "net."}) ==
            "no tensor's name begins with 'net.'; run fsdp-inspect --summary to see how the names "
            "begin");
    });
  }
}

// A model whose head and embedding share one weight.
struct TiedHeadImpl : torch::nn::Module {
  TiedHeadImpl() : embedding(5, 4) {
    register_module("embedding", embedding);
    head = register_parameter("head", embedding->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return embedding(x).matmul(head.t()); }
  torch::nn::Embedding embedding;
  at::Tensor head;
};
TORCH_MODULE(TiedHead);

TEST_CASE("copies of a tied weight load as one if they are equal, and are refused by both names") {
  const ScratchFolder folder;
  const at::Tensor value = testing::values({5, 4}, 1);
  at::Tensor other = value.clone();
  other.flatten()[17] += 1;
  const auto write = [&](const std::string& name, const at::Tensor& head) {
    write_state_dict(folder / name, {{"embedding.weight", value}, {"head", head}});
  };
  write("equal.pt", value.clone());
  write("unequal.pt", other);
  write_state_dict(folder / "one.pt", {{"embedding.weight", value}});
  for (const int world : {1, 2, 3}) {
    run_torch_ranks(world, [&](const Mesh& mesh) {
      Unit<TiedHead> model = testing::build_seeded(9, [] { return Unit<TiedHead>(); });
      Engine engine(model, mesh);
      const LoadReport report = load_weights(engine, folder / "equal.pt");
      CHECK(report.copies == Names{"embedding.weight"});
      CHECK(report.notes ==
            Names{"ignored 1 copy of tied weights, equal to the original: 'embedding.weight'"});
      REQUIRE(testing::full_parameters(engine).size() == 1);
      CHECK(bit_equal(testing::full_parameters(engine).begin()->second, value));
      CHECK(load_weights(engine, folder / "one.pt").notes.empty());
    });
    // The rank that holds the difference reports it, and all ranks throw.
    CHECK_THROWS_WITH_AS(run_torch_ranks(world,
                                         [&](const Mesh& mesh) {
                                           Unit<TiedHead> model = testing::build_seeded(
                                               9, [] { return Unit<TiedHead>(); });
                                           Engine engine(model, mesh);
                                           load_weights(engine, folder / "unequal.pt");
                                         }),
                         doctest::Contains("tensors 'head' and 'embedding.weight' differ, but the "
                                           "model ties them to one parameter"),
                         IoError);
  }
}

TEST_CASE("a file that save_weights has just written loads, whatever the size of its header") {
  const ScratchFolder folder;
  run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<torch::nn::Linear> model(3, 2);
    Engine engine(model, mesh);
    const std::filesystem::path path = folder / "m.safetensors";
    for (const size_t size : {640, 640 + 65'536}) {
      save_weights(engine, path, {.metadata = {{"note", ""}}});
      const std::string header = read_whole(path);
      const size_t now = static_cast<unsigned char>(header[0]) + 256 * header[1];
      save_weights(engine, path, {.metadata = {{"note", std::string(size - now, 'x')}}});
      REQUIRE(read_whole(path).substr(0, 2) == "\x80\x02");  // the first bytes of a pickle
      CHECK(load_weights(engine, path).notes.empty());
    }
  });
}

}  // namespace
}  // namespace fsdp
