// Compares the plans of fsdp-plan with runs of the same models.
#include <fsdp/engine.h>
#include <fsdp/optim.h>

#include <sstream>
#include <tuple>

#include "models/bert/bert_model.h"
#include "models/bert/presets.h"
#include "models/gpt.h"
#include "models/llama.h"
#include "planning/plan_report.h"
#include "planning/plan_search.h"
#include "planning/support/plan_words.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;
using namespace planning;

namespace {

std::string description_of(const PlanSettings& settings, const KnownModel& model) {
  Planners planners(model, settings.batch.length);
  return describe_plan(settings, model, PlanSearch(settings, planners).plan());
}

// Returns the engine's plan after two steps on thread ranks.
template <class Model, class Config>
MemoryPlan plan_of_run(int ranks, const PlanSettings& settings, const Config& config) {
  MemoryPlan plan;
  run_torch_ranks(ranks, [&](Mesh mesh) {
    Options options = settings.run.engine;
    options.unit_options = find_model(settings.model).unit_options;
    BuildScope building(mesh, options);
    Unit<Model> model(config);
    Engine engine(model, building);
    AdamW optimizer(engine, {});
    for (int step = 0; step < 2; ++step) {
      blank_loss(model, settings.batch.sequences, settings.batch.length).backward();
      optimizer.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    if (mesh.rank() == 0) plan = engine.memory_plan();
  });
  return plan;
}

template <class Model, class Config>
void check_as_run(const std::string& name, const Config& config) {
  for (const auto& [strategy, recompute] : {std::pair{"full-shard", "1"}, {"zero2", "0"}}) {
    CAPTURE(name);
    CAPTURE(std::string(strategy));
    // Thread ranks do not map the shards of other ranks.
    const PlanSettings settings = settings_of(
        {"--model", name.c_str(), "--ranks", "2", "--batch", "2", "--seq-len", "16", "--strategy",
         strategy, "--recompute", recompute, "--map-shards", "false", "--device", "cpu"});
    Planners planners(find_model(name), settings.batch.length);
    PlanSearch search(settings, planners);
    const MemoryPlan run = plan_of_run<Model>(2, settings, config);
    const MemoryPlan& planned = search.plan().memory;
    CHECK(planned.rest == run.rest);
    CHECK(planned.forward_peak == run.forward_peak);
    CHECK(planned.after_forward == run.after_forward);
    CHECK(planned.backward_peak == run.backward_peak);
    CHECK(planned.after_backward == run.after_backward);
    CHECK(planned.held_bytes == run.held_bytes);
  }
}

}  // namespace

TEST_CASE("presets have the parameters that these models are known for") {
  CHECK(parameters_of("llama-7b") == 6'738'415'616);
  CHECK(parameters_of("llama-13b") == 13'015'864'320);
  CHECK(parameters_of("llama-70b") == 68'976'648'192);
  CHECK(parameters_of("llama-3-8b") == 8'030'261'248);
  CHECK(parameters_of("llama-3-70b") == 70'553'706'496);
  CHECK(parameters_of("gpt2") == 124'439'808);
  CHECK(parameters_of("bert-base") == 108'893'186);  // includes the head for question answering
}

TEST_CASE("planned engine bytes are those of a run of the preset") {
  bert::Config bert = bert::preset_config("tiny");
  // Thread ranks share one generator, so a recomputed forward may draw other numbers.
  bert.hidden_dropout_prob = bert.attention_probs_dropout_prob = 0;
  check_as_run<bert::QuestionAnswering>("bert-tiny", bert);
  check_as_run<gpt::Gpt>("gpt-tiny", gpt::preset_config("tiny"));
  check_as_run<llama::Llama>("llama-tiny", llama::preset_config("tiny"));
}

TEST_CASE("a command line that asks for what cannot be planned is refused with 64") {
  const auto refused = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "bert-tiny"});
    return refusal_of([&] {
      const PlanSettings settings = settings_of(words);
      Planners planners(find_model(settings.model), settings.batch.length);
      PlanSearch(settings, planners);
    });
  };
  CHECK(refusal_of([] { settings_of({}); }).starts_with("64 no model is given"));
  CHECK(says(refused({"--rank", "2"}), "did you mean --ranks?"));
  CHECK(refused({"--ranks", "0"}).starts_with("64 --ranks cannot be '0'"));
  CHECK(refused({"--ranks"}).starts_with("64 --ranks has no value"));
  CHECK(refused({"--model", "--ranks", "8"}).starts_with("64 --model has no value"));
  CHECK(refused({"--ranks", "6", "--hosts", "4"})
            .starts_with("64 6 ranks cannot be divided equally over 4 hosts"));
  CHECK(says(refused({"--strategy", "zero5"}), "did you mean zero"));
  CHECK(refused({"--seq-len", "513"}).starts_with("64 --seq-len cannot be 513"));
  CHECK(
      refused({"--bandwidth", "10"}).starts_with("64 --flops is missing, but --bandwidth is set"));
  CHECK(refused({"--memory", "80G"}).starts_with("64 --memory cannot be '80G'"));
  CHECK(refused({"--memory", "80"}) ==
        "64 --memory cannot be '80'; hint: add a unit: 80GiB, or 80B for bytes");
  CHECK(says(refused({"--host-memory", "512"}), "add a unit: 512GiB"));
  CHECK(says(refused({"--memory-limit", "40"}), "add a unit: 40GiB"));
  CHECK(says(refused({"--memory", "1GiB", "--device", "cuda"}), "the reserve of 1.0 GiB"));
  CHECK(says(refused({"--eval_steps", "5", "--rank", "2", "--resume"}),
             "there are no flags --eval-steps, --rank, --resume"));
  CHECK(refused({"--seq_len=128"}) == "no error");
}

TEST_CASE("changes are listed until all together fit, and the smallest ranks fit, too") {
  const PlanSettings settings = settings_of({"--model", "bert-small", "--ranks", "4", "--batch",
                                             "4", "--memory", "250MiB", "--map-shards", "false"});
  Planners planners(find_model(settings.model), settings.batch.length);
  PlanSearch search(settings, planners);
  const int64_t budget = settings.room().device, needed = search.needed().device;
  CHECK(budget == 250 << 20);  // the CPU needs no reserve
  REQUIRE(needed > budget);
  const std::vector<ChangeNeeds> changes = search.changes(settings.room());
  REQUIRE(!changes.empty());
  for (size_t i = 0; i + 1 < changes.size(); ++i) CHECK(changes[i].together.device > budget);
  for (const ChangeNeeds& each : changes) {
    CAPTURE(each.change);
    CHECK(each.alone.device < needed);
    CHECK(each.together.device <= each.alone.device);
  }
  CHECK(changes.back().together.device <= budget);

  const Room roomy{.device = needed - 1};
  const auto smallest = search.smallest_ranks(roomy);
  REQUIRE(smallest);
  CHECK(smallest->ranks == 8);
  CHECK(smallest->needed.device <= roomy.device);
  CHECK(!search.smallest_ranks({.device = 1}));
  CHECK(!search.smallest_ranks({.host = 1}));
}

TEST_CASE("a change that saves next to nothing is neither listed nor hinted at") {
  const PlanSettings settings =
      settings_of({"--model", "llama-7b", "--ranks", "8", "--batch", "8", "--memory", "80GiB"});
  Planners planners(find_model(settings.model), settings.batch.length);
  PlanSearch search(settings, planners);
  const Verdict verdict = judge(settings, search);
  CHECK(!verdict.fits);
  CHECK(!says(verdict.text, "--prefetch 0"));
  CHECK(verdict.remedy == "--recompute");
  CHECK(says(verdict.text, "76.0 GiB are not enough"));
  CHECK(says(verdict.text, "4.0 GiB of 80.0 GiB are left to the context, NCCL"));
}

TEST_CASE("a model's own length, dtype and device are the defaults") {
  const auto with = [](std::vector<const char*> words) { return settings_of(std::move(words)); };
  const PlanSettings llama = with({"--model", "llama-70b", "--ranks", "8"});
  CHECK(llama.batch.length == 4096);
  CHECK(llama.on_gpus());
  CHECK(llama.run.engine.mixed_precision.param_dtype == torch::kBFloat16);
  const PlanSettings asked = with(
      {"--model", "llama-7b", "--device", "cpu", "--param-dtype", "float32", "--seq-len", "128"});
  CHECK(asked.batch.length == 128);
  CHECK(!asked.on_gpus());
  CHECK(asked.run.engine.mixed_precision.param_dtype == torch::kFloat32);
  const PlanSettings gpt = with({"--model", "gpt2"});
  CHECK(gpt.batch.length == 1024);
  CHECK(!gpt.on_gpus());
  CHECK(!gpt.run.engine.mixed_precision.param_dtype);
  CHECK(with({"--model", "bert-base"}).batch.length == 384);
  CHECK(with({"--model", "bert-base", "--ranks", "2", "--hosts", "2"}).on_gpus());
}

TEST_CASE("what a host must have is held against what it has") {
  const auto verdict_with = [](std::vector<const char*> words) {
    words.insert(words.begin(),
                 {"--model", "llama-7b", "--ranks", "8", "--seq-len", "128", "--memory", "80GiB"});
    const PlanSettings settings = settings_of(std::move(words));
    Planners planners(find_model(settings.model), settings.batch.length);
    PlanSearch search(settings, planners);
    return judge(settings, search);
  };
  // The state has 16 bytes a parameter. That is 100.4 GiB, which the ranks of the host share.
  const Verdict unsaid = verdict_with({"--offload"});
  CHECK(unsaid.fits);
  CHECK(says(unsaid.text, "a host must have 100.4 GiB for its 8 ranks; --host-memory checks it"));
  CHECK(verdict_with({"--offload", "--host-memory", "128GiB"}).fits);
  const Verdict scarce = verdict_with({"--offload", "--host-memory", "64GiB"});
  CHECK(!scarce.fits);
  CHECK(says(scarce.text, "64.0 GiB are not enough"));
  CHECK(!says(scarce.text, "changes, in order of cost"));  // these changes lower only device memory
  CHECK(scarce.remedy == "--ranks 16");
  CHECK(!says(verdict_with({}).text, "a host must have"));
}

TEST_CASE("the CPUs of several hosts use hybrid shard if it fits, and else full shard") {
  const auto planned = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "bert-small", "--ranks", "4", "--hosts", "2"});
    PlanSettings settings = settings_of(std::move(words));
    Planners planners(find_model(settings.model), settings.batch.length);
    choose_strategy(settings, planners);
    const PlanSearch search(settings, planners);
    return std::tuple(settings.run.engine.strategy, search.needed().host,
                      search.plan().traffic.to_other_hosts);
  };
  const auto [hybrid, needed, sent] = planned({"--device", "cpu"});
  CHECK(hybrid == Strategy::kHybridShard);
  const std::string too_little = std::to_string(needed - 1) + "B";
  const auto [full, needed_by_full, sent_by_full] =
      planned({"--device", "cpu", "--host-memory", too_little.c_str()});
  CHECK(full == Strategy::kFullShard);
  // Gradients travel twice, or parameters twice and gradients once.
  CHECK(sent_by_full > sent);
  CHECK(sent > 0);
  CHECK(std::get<0>(planned({"--device", "cpu", "--strategy", "zero2"})) == Strategy::kZero2);
  CHECK(std::get<0>(planned({"--device", "cuda"})) == Strategy::kFullShard);
}

TEST_CASE("hybrid strategies are offered where there are groups") {
  const auto names = [](const char* hosts) {
    const PlanSettings settings =
        settings_of({"--model", "bert-tiny", "--ranks", "4", "--hosts", hosts});
    Planners planners(find_model(settings.model), settings.batch.length);
    PlanSearch search(settings, planners);
    return search.strategies().size();
  };
  CHECK(names("1") == 4);
  CHECK(names("2") == 7);
}

TEST_CASE("--optim plans the state of the named optimizer") {
  const auto state_of = [](const char* optimizer) {
    const PlanSettings settings =
        settings_of({"--model", "gpt-tiny", "--ranks", "2", "--optim", optimizer});
    const KnownModel model = find_model(settings.model);
    Planners planners(model, settings.batch.length);
    return PlanSearch(settings, planners).plan().memory.rest[fsdp::MemoryCategory::kOptimizerState];
  };
  const int64_t adamw = state_of("adamw_torch");
  CHECK(state_of("radam") == adamw);
  CHECK(state_of("lion_32bit") == adamw / 2);
  CHECK(state_of("sgd") == 0);
  CHECK(state_of("lamb") > adamw);
  CHECK(state_of("lamb") < adamw * 1.05);
  CHECK(state_of("adamw_8bit") < adamw * 0.3);
  CHECK(refusal_of([&] { state_of("adam"); }).starts_with("64 --optim cannot be 'adam'"));
}

TEST_CASE("--save shows what the checkpoints of a run take on disk") {
  const auto text = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "gpt2", "--ranks", "2", "--seq-len", "64"});
    const PlanSettings settings = settings_of(std::move(words));
    const KnownModel model = find_model(settings.model);
    const std::string plan = description_of(settings, model);
    return plan.substr(std::min(plan.size(), plan.find("a checkpoint")));
  };
  // 124,439,808 parameters with two moments.
  CHECK(text({"--save"}) ==
        "a checkpoint takes 1.4 GiB on disk (712.1 MiB from rank 0), all are kept\n");
  CHECK(text({"--save", "--save-total-limit", "2"}) ==
        "a checkpoint takes 1.4 GiB on disk (712.1 MiB from rank 0), at most 3 exist at\n"
        "once (4.2 GiB)\n");
  CHECK(says(text({"--save-only-model", "--save"}), "takes 474.9 MiB on disk (237.4 MiB"));
  CHECK(text({}).empty());
  const auto refused = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "bert-tiny"});
    return refusal_of([&] { settings_of(words); });
  };
  CHECK(refused({"--save-total-limit", "3"}).starts_with("64 --save is missing, but --save-"));
  CHECK(refused({"--save-only-model"}).starts_with("64 --save is missing, but --save-"));
  CHECK(refused({"--save", "--save-total-limit", "1"}).starts_with("64 --save-total-limit is 1"));
  CHECK(refused({"--save", "--save-total-limit"}).starts_with("64 --save-total-limit has no"));
}

TEST_CASE("no line of a report has more than 80 columns") {
  const PlanSettings settings = settings_of({"--model",
                                             "llama-70b",
                                             "--ranks",
                                             "512",
                                             "--hosts",
                                             "64",
                                             "--memory",
                                             "8GiB",
                                             "--bandwidth",
                                             "50",
                                             "--flops",
                                             "400",
                                             "--device",
                                             "cuda",
                                             "--strategy",
                                             "hybrid-shard",
                                             "--batch",
                                             "2",
                                             "--offload",
                                             "--host-memory",
                                             "64GiB",
                                             "--save",
                                             "--save-total-limit",
                                             "99"});
  const KnownModel model = find_model(settings.model);
  Planners planners(model, settings.batch.length);
  PlanSearch search(settings, planners);
  const Verdict verdict = judge(settings, search);
  CHECK(!verdict.fits);
  std::istringstream lines(describe_plan(settings, model, search.plan()) + verdict.text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }) <= 80);
  }
}

TEST_CASE("communication hides from so many tokens on as its bytes ask for") {
  const auto text = [](const char* sequences) {
    const PlanSettings settings =
        settings_of({"--model", "bert-base", "--ranks", "64", "--hosts", "8", "--bandwidth", "10",
                     "--flops", "100", "--batch", sequences, "--seq-len", "500"});
    const KnownModel model = find_model(settings.model);
    return description_of(settings, model);
  };
  // A step sends about 3 · 4Ψ bytes, and each token needs 6Ψ operations in addition to attention.
  // So compute equals communication at 12 / 6 · 100e12 / 10e9 tokens or fewer.
  CHECK(says(text("8"), "communication cannot hide: it could from 1"));
  CHECK(says(text("48"), "communication can hide behind compute"));
  CHECK(says(text("8"), "at 10 GB/s: right if nccl-tests print this busbw, not a card's rate"));
}

TEST_CASE("operations are those of the parameters, of attention, and of what is recomputed") {
  const auto gflop = [](const char* length, const char* recompute) {
    const PlanSettings settings =
        settings_of({"--model", "llama-7b", "--ranks", "8", "--bandwidth", "10", "--flops", "100",
                     "--seq-len", length, "--recompute", recompute});
    const KnownModel model = find_model(settings.model);
    const std::string text = description_of(settings, model);
    const size_t begin = text.find('(', text.find("computing takes ")) + 1;
    return std::stod(text.substr(begin));
  };
  // Source: PaLM (Chowdhery et al. 2022, appendix B). A token needs 6Ψ + 12 · layers · width ·
  // tokens.
  constexpr double kParameters = 6.738415616, kPairs = 12 * 32 * 4096 / 1e9;
  CHECK(gflop("1", "0") == doctest::Approx(6 * kParameters + kPairs).epsilon(0.005));
  CHECK(gflop("4096", "0") == doctest::Approx(6 * kParameters + 4096 * kPairs).epsilon(0.005));
  CHECK(gflop("4096", "1") ==
        doctest::Approx((6 * kParameters + 4096 * kPairs) * 4 / 3).epsilon(0.005));
}
