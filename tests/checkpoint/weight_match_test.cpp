#include "checkpoint/weight_match.h"

#include "support/model_files.h"
#include "support/scratch_folder.h"
#include "support/torch_doctest.h"

namespace fsdp {
namespace {

using Names = std::vector<std::string>;

const std::vector<ExpectedTensor> kExpected = {{"body.weight", {2}},
                                               {"norm.weight", {2}},
                                               {"norm.bias", {2}},
                                               {"head.weight", {2}},
                                               {"head.bias", {2}}};
const Names kBody = {"body.weight", "norm.weight", "norm.bias"};

Names operator+(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

// Older files use the names gamma and beta. A pooler may be unused, and a head may be missing.
LoadOptions options() {
  return {.parameter_name =
              [](std::string_view stored) {
                std::string name(stored);
                if (name.ends_with(".gamma")) name.replace(name.size() - 5, 5, "weight");
                if (name.ends_with(".beta")) name.replace(name.size() - 4, 4, "bias");
                return name;
              },
          .may_be_unused = [](std::string_view name) { return name.starts_with("pooler."); },
          .may_be_missing = [](std::string_view fqn) { return fqn.starts_with("head."); }};
}

// A file that contains F32 tensors of shape [2] with these names.
class File {
 public:
  explicit File(const std::vector<TensorSpec>& specs) {
    write_zeros(path(), specs);
    file_.emplace(path());
    weights_.emplace(*file_);
  }
  explicit File(const Names& names) : File(small_tensors(names)) {}

  std::filesystem::path path() const { return scratch_ / "w.safetensors"; }
  const WeightsFile& get() const { return *weights_; }
  MatchedWeights matched(const LoadOptions& how = options(), const File* instead = nullptr) const {
    return match_weights(
        {.files = {&*weights_}, .instead = instead != nullptr ? &*instead->weights_ : nullptr},
        kExpected, how);
  }
  std::string refusal(const LoadOptions& how = options()) const {
    try {
      matched(how);
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCorruptData);
      CHECK(error.text().where == path().string());
      return error.text().what;
    }
    return "accepted";
  }

 private:
  ScratchFolder scratch_;
  std::optional<SafetensorsFile> file_;
  std::optional<SafetensorsWeights> weights_;
};

TEST_CASE("equal names match without a word, and without options") {
  const File file(kBody + Names{"head.weight", "head.bias"});
  const MatchedWeights matched = file.matched({});
  REQUIRE(matched.sources.size() == kExpected.size());
  for (size_t i = 0; i < kExpected.size(); ++i) {
    REQUIRE(matched.sources[i].has_value());
    CHECK(matched.sources[i]->tensor->name == kExpected[i].fqn);
  }
  CHECK(matched.report.notes.empty());
  CHECK(matched.report.renamed.empty());
}

TEST_CASE("what was renamed, left out or left alone is reported, and the last two said once") {
  const File file(Names{"body.weight", "norm.gamma", "norm.beta", "pooler.weight"});
  const MatchedWeights matched = file.matched();
  CHECK(matched.sources[1]->tensor->name == "norm.gamma");
  CHECK(matched.sources[2]->tensor->name == "norm.beta");
  CHECK(!matched.sources[3]);
  CHECK(!matched.sources[4]);
  const LoadReport& report = matched.report;
  CHECK(report.renamed == Names{"norm.beta", "norm.gamma"});
  CHECK(report.unused == Names{"pooler.weight"});
  CHECK(report.kept == Names{"head.weight", "head.bias"});
  CHECK(report.notes == Names{"ignored 1 tensor of the weights: 'pooler.weight'",
                              "the weights lack 2 tensors, left at the initial values: "
                              "'head.weight', 'head.bias'"});
}

TEST_CASE("a tensor that may be left out is used where the model expects it") {
  const File file(Names{"pooler.weight"});
  const std::vector<ExpectedTensor> expected = {{"pooler.weight", {2}}};
  const MatchedWeights matched = match_weights({.files = {&file.get()}}, expected, options());
  CHECK(matched.sources[0]->tensor->name == "pooler.weight");
  CHECK(matched.report.notes.empty());
}

TEST_CASE("a file given instead comes before the others") {
  const Names head = {"head.weight", "head.bias"};
  const File file(kBody + head), other(head);
  const MatchedWeights matched = file.matched(options(), &other);
  CHECK(matched.sources[0]->file == &file.get());
  CHECK(matched.sources[3]->file == &other.get());
  CHECK(matched.report.replaced == Names{"head.bias", "head.weight"});
  CHECK(matched.report.notes == Names{"loaded from " + other.path().string() +
                                      " instead of the model folder: 'head.bias', 'head.weight'"});
  CHECK(File(kBody).matched(options(), &other).report.notes.empty());
}

TEST_CASE("missing, unexpected, unfitting and doubled tensors are refused by name") {
  CHECK(File(Names{"body.weight", "norm.weight"}).refusal() ==
        "the weights lack 1 tensor of the model: 'norm.bias'");
  CHECK(File(Names{"head.weight", "head.bias"})
            .refusal()
            .starts_with("the weights lack 3 tensors of the model: 'body.weight', "));
  CHECK(File(kBody).refusal({}).starts_with("the weights lack 2 tensors of the model"));
  CHECK(File(kBody + Names{"head.weight"}).refusal() ==
        "the weights lack 1 tensor of the model: 'head.bias'");
  CHECK(File(kBody + Names{"classifier.weight", "body.9"}).refusal() ==
        "the weights have 2 tensors that the model does not have: 'body.9', 'classifier.weight'");
  CHECK(File(kBody + Names{"norm.gamma"}).refusal() ==
        "tensors 'norm.gamma' and 'norm.weight' both map to the model's tensor 'norm.weight'");
  auto specs = small_tensors(kBody);
  specs[0].shape = {2, 1};
  CHECK(File(specs).refusal() == "tensor 'body.weight' has shape [2, 1], the model expects [2]");
  specs[0] = {"body.weight", StoredDType::kI64, {2}};
  CHECK(File(specs).refusal() == "tensor 'body.weight' has type I64, which weights cannot have");
  specs[0] = {"body.weight", StoredDType::kF8E4M3, {2}};
  CHECK(File(specs).refusal() ==
        "tensor 'body.weight' has type F8_E4M3, which weights cannot have");
  for (const auto dtype : {StoredDType::kF16, StoredDType::kBF16, StoredDType::kF64}) {
    specs[0] = {"body.weight", dtype, {2}};
    CHECK(File(specs).refusal() == "accepted");
  }
}

TEST_CASE("names lose the beginning that the options name, and a missing one is looked for") {
  const Names wrapped = {"module.body.weight", "module.norm.bias", "module.norm.weight"};
  const File file(wrapped + Names{"epoch.head.weight", "epoch.head.bias"});
  LoadOptions with = options();
  with.may_be_unused = [](std::string_view name) { return name.starts_with("epoch."); };
  CHECK(file.refusal(with).starts_with("the weights lack 3 tensors of the model"));
  with.strip_prefix = "module.";
  const MatchedWeights matched = file.matched(with);
  CHECK(matched.report.renamed == wrapped);
  CHECK(matched.sources[0]->tensor->name == "module.body.weight");
  with.strip_prefix = "net.";
  CHECK_THROWS_WITH_AS(file.matched(with), doctest::Contains("no tensor's name begins with 'net.'"),
                       InvalidArgument);
}

TEST_CASE("a long list of names is cut") {
  Names names = kBody;
  for (int i = 10; i < 30; ++i) names.push_back("extra." + std::to_string(i));
  const std::string said = File(names).refusal();
  CHECK(said.starts_with("the weights have 20 tensors"));
  CHECK(said.ends_with("'extra.17' and 12 more"));
}

}  // namespace
}  // namespace fsdp
