"""Names that other libraries use for the keys of a config, the flags of a command and the keywords of `generate`.

`hint` and `key_hint` turn them into the end of a message: the nearest right name, or how the thing is done here.
"""

import re
from collections.abc import Collection, Mapping

from plm_jax.core.errors import near, suggest

EVALUATION = 'validation'  # the usual name of one, in flags that are suggested
# our key -> the words of others for it. A key is spelled from the top of a config; NAME is that of an evaluation.
KEYS: dict[str, str] = {
  'optim.rate': 'lr learning_rate base_lr peak_lr max_lr init_lr initial_lr learningrate step_size eta alpha',
  'optim.decay': 'wd weight_decay weight_decay_rate l2 l2_reg regularization decay_rate',
  'optim.warmup': 'warmup_steps num_warmup_steps warmup_ratio warmup_proportion warmup_updates warmup_epochs',
  'optim.clip':
    'grad_clip clip_grad clip_grad_norm max_grad_norm gradient_clip gradient_clip_val clip_norm clipnorm '
    'gradient_clipping max_norm',
  'optim.b1': 'beta1 adam_beta1 beta_1',
  'optim.b2': 'beta2 adam_beta2 beta_2 betas adam_betas',
  'optim.eps': 'adam_epsilon adam_eps epsilon',
  'optim.name': 'optimizer optimiser optimizer_name optimizer_type optim_name opt',
  'optim.schedule':
    'lr_scheduler scheduler lr_schedule lr_scheduler_type scheduler_type learning_rate_schedule lr_decay',
  'optim.floor': 'min_lr min_learning_rate end_lr final_lr lr_end min_lr_ratio end_learning_rate',
  'optim.ema': 'ema_decay ema_rate polyak',
  'optim.scale':
    'freeze frozen_layers freeze_encoder freeze_layers freeze_embeddings layer_decay layerwise_lr_decay llrd '
    'lr_layer_decay param_groups unfreeze unfreezing gradual_unfreezing chain_thaw discriminative_lr '
    'discriminative_learning_rates',
  'data.batch_size':
    'bs batch batchsize train_batch_size global_batch_size per_device_train_batch_size per_gpu_train_batch_size '
    'micro_batch_size rows',
  'eval.NAME.data.batch_size':
    'eval_batch_size per_device_eval_batch_size per_gpu_eval_batch_size val_batch_size valid_batch_size '
    'test_batch_size',
  'data.length':
    'max_seq_length max_seq_len seq_len seq_length sequence_length max_length max_len maxlen max_source_length '
    'model_max_length max_sequence_length context_length context_size block_size tokens_per_sample window_size',
  'data.path':
    'dataset dataset_name train_file data_path data_dir corpus corpus_path train_data train_path input_file '
    'dataset_path text_file file files',
  'data.split': 'train_split dataset_split validation_split val_fraction train_fraction',
  'data.text': 'text_column text_field text_column_name text_key content_column',
  'data.label': 'label_column label_column_name label_key label_field',
  'data.per_class': 'few_shot n_shot shots examples_per_class num_shots',
  'data.stride': 'doc_stride',
  'data.question_length': 'max_query_length max_question_length',
  'data.shuffle': 'shuffle_buffer shuffle_data shuffle_buffer_size',
  'eval.NAME.data.path':
    'validation_file eval_file dev_file valid_file test_file val_data validation_data eval_dataset eval_data',
  'accumulate':
    'gradient_accumulation_steps grad_accum grad_accum_steps gradient_accumulation accumulation_steps accum '
    'accum_steps accumulate_grad_batches update_freq',
  'epochs': 'epoch num_epochs n_epochs num_train_epochs max_epochs nepochs train_epochs',
  'steps':
    'max_steps num_train_steps num_steps n_steps total_steps train_steps max_iters iterations iters '
    'training_steps max_updates max_update num_updates num_training_steps total_train_steps updates',
  'seed': 'random_seed data_seed rng_seed manual_seed random_state prng_seed',
  'log_every':
    'logging_steps log_interval log_steps log_every_steps log_every_n_steps log_freq logging_interval print_every',
  'eval_every':
    'eval_steps eval_interval evaluation_strategy eval_strategy eval_freq eval_every_steps val_check_interval '
    'validate_interval validate_every eval_frequency',
  'save_every':
    'save_steps checkpoint_every save_interval checkpoint_steps save_freq checkpoint_interval '
    'save_checkpoints_steps ckpt_every save_strategy checkpoint_frequency',
  'keep': 'save_total_limit max_to_keep keep_checkpoints keep_checkpoint_max keep_last_n max_checkpoints',
  'early_stop': 'patience early_stopping early_stopping_patience early_stopping_rounds',
  'best': 'metric_for_best_model best_metric monitor load_best_model_at_end greater_is_better',
  'max_skipped': 'skip_nan max_nan max_consecutive_skips',
  'spikes': 'skip_step_on_spikes skipstep loss_spike spike_detection check_for_spiky_loss',
  'verify_every': 'sdc_checker sdc_check rerun_mode rerun_state_machine error_injection_rate replay_every',
  'log': 'report_to logger loggers use_wandb wandb tensorboard wandb_project with_tracking tracker',
  'execution.dtype':
    'fp16 bf16 precision mixed_precision torch_dtype dtype compute_dtype half half_precision amp use_bf16',
  'execution.remat':
    'gradient_checkpointing remat checkpoint_activations activation_checkpointing checkpointing use_remat '
    'rematerialization',
  'execution.attention':
    'flash_attention attn_implementation use_flash_attention attention_implementation attn_impl flash_attn',
  'execution.layers': 'scan_layers use_scan',
  'sharding.mesh':
    'devices num_devices n_gpus num_gpus gpus mesh mesh_shape n_devices world_size tpu_cores tensor_parallel '
    'data_parallel',
  'sharding.rules': 'fsdp zero_stage deepspeed parallelism sharding_rules partition_rules',
  'model.name': 'model_name model_type arch architecture backbone encoder model_class network',
  'model.variant': 'model_size size preset config_name',
  'model.overrides.hidden_dim':
    'hidden_size d_model n_embd embed_size model_dim emb_dim dim width hidden n_embed embed_dim embedding_dim '
    'hidden_units dmodel',
  'model.overrides.num_layers':
    'num_hidden_layers n_layer n_layers layers depth num_blocks n_blocks encoder_layers decoder_layers '
    'num_encoder_layers num_decoder_layers nlayers',
  'model.overrides.num_heads':
    'heads n_head n_heads num_attention_heads nhead nheads attention_heads encoder_attention_heads',
  'model.overrides.num_kv_heads': 'num_key_value_heads n_kv_heads kv_heads multi_query_group_num',
  'model.overrides.head_dim': 'd_kv head_size attention_head_size d_head',
  'model.overrides.mlp_dim':
    'intermediate_size d_ff ffn_dim n_inner dim_feedforward feedforward_dim ff_dim ffn_size mlp_size d_inner '
    'ffn_hidden_size encoder_ffn_dim d_mlp',
  'model.overrides.embed_dim': 'embedding_size',
  'model.overrides.max_length': 'max_position_embeddings n_positions n_ctx max_positions num_positions',
  'model.overrides.num_types': 'type_vocab_size token_type_vocab_size segment_vocab_size',
  'model.overrides.dropout':
    'dropout_rate hidden_dropout_prob hidden_dropout resid_pdrop dropout_prob residual_dropout embd_pdrop '
    'p_dropout drop_rate dropout_p hidden_dropout_rate resid_dropout',
  'model.overrides.attention_dropout':
    'attention_probs_dropout_prob attn_dropout attn_pdrop attention_dropout_rate attn_dropout_rate',
  'model.overrides.norm_epsilon': 'layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps ln_eps layernorm_epsilon',
  'model.overrides.init_std': 'initializer_range init_range initializer_factor init_scale',
  'model.overrides.activation': 'hidden_act activation_function act act_fn hidden_activation',
  'model.overrides.rotary_base': 'rope_theta rope_base',
  'vocab.path':
    'tokenizer tokenizer_name tokenizer_path tokenizer_name_or_path vocab_file tokenizer_file vocab_path bpe_path '
    'spm_model',
  'vocab.name': 'tokenizer_type tokenizer_class',
  'vocab.extra': 'additional_special_tokens special_tokens added_tokens',
  'init_from.0.source':
    'pretrained pretrained_path model_name_or_path pretrained_model_name_or_path init_checkpoint load_from '
    'from_pretrained restore_from pretrained_model restore_path weights load_path init_weights checkpoint ckpt '
    'checkpoint_path',
  'adapter.classes': 'num_labels n_classes num_classes n_labels nclasses classes_num',
  'adapter.n_best': 'n_best_size',
  'adapter.max_answer': 'max_answer_length',
  'adapter.no_answer': 'version_2_with_negative squad_v2',
  'adapter.threshold': 'null_score_diff_threshold',
  'adapter.rank': 'r lora_r lora_rank',
  'adapter.alpha': 'lora_alpha',
  'adapter.targets': 'target_modules lora_target_modules',
  'adapter.trained': 'modules_to_save',
  'adapter.mlp_dim': 'encoder_hidden_size prefix_hidden_size mid_dim',
  'adapter.class_weights': 'class_weight pos_weight label_weights loss_weights',
  'adapter.name': 'head task_head downstream finetune',
  'objective.name': 'task loss loss_fn objective_name pretraining_task task_name',
  'objective.where.rate':
    'mlm_probability mask_prob masked_lm_prob mask_rate mask_ratio masking_rate masking_ratio mask_probability '
    'masking_prob noise_density corruption_rate mask_percentage',
  'objective.where.max_count': 'max_predictions_per_seq max_predictions num_predict',
  'objective.where.mean': 'mean_span_length mean_noise_span_length avg_span_length poisson_lambda',
}  # fmt: skip
# keywords and flags of generation
GENERATE: dict[str, str] = {
  'max_new': 'max_new_tokens max_tokens max_length max_len max_gen_len num_tokens length n_tokens max_output_tokens',
  'min_new': 'min_new_tokens min_tokens min_length min_len',
  'beams': 'num_beams beam_size beam_width n_beams beam num_beam',
  'method': 'do_sample sample strategy decoding mode sampling greedy use_beam_search',
  'no_repeat': 'no_repeat_ngram_size no_repeat_ngram ngram_blocking block_ngram',
  'num_samples': 'draws num_return_sequences n_samples n best_of num_sequences',
  'eos_id': 'eos_token_id end_id eos eos_token stop_token stop_id',
  'pad_id': 'pad_token_id pad',
  'early_stop': 'early_stopping',
  'start_id': 'decoder_start_token_id bos_token_id bos_id start_token_id',
  'first_id': 'forced_bos_token_id',
  'last_id': 'forced_eos_token_id',
  'tokens': 'input_ids inputs prompt prompt_ids ids prompts',
  'segment_ids': 'attention_mask mask padding_mask',
  'rng': 'seed key generator random_seed',
  'temperature': 'temp t',
  'top_k': 'k topk',
  'top_p': 'p topp nucleus nucleus_p',
  'length_penalty': 'len_penalty length_alpha lp',
  'seed': 'random_seed rng_seed',
  'prompt': 'text input input_text prompts',
  'weights': 'model model_path model_name_or_path model_name checkpoint pretrained',
  'workdir': 'run run_dir output_dir model_dir',
  'start': 'decoder_start_token bos_token',
}
# words without a key of ours -> how it is done here
FIXES: dict[str, str] = {
  'vocab_size n_vocab vocabulary_size': 'The size is that of the vocabulary in vocab.path; '
  '`plm-jax vocab train --size=N` makes one.',
  'output_dir out_dir save_dir logdir log_dir run_dir output_path out exp_dir work_dir checkpoint_dir ckpt_dir '
  'model_dir output': 'The folder of a run is the flag --workdir=DIR.',
  'resume resume_from resume_from_checkpoint continue_training restore auto_resume load_checkpoint':
  'The same command resumes from the newest checkpoint of its --workdir.',
  'overwrite overwrite_output_dir force': 'A run never overwrites another: name a new --workdir.',
  'num_workers dataloader_num_workers preprocessing_num_workers prefetch num_proc':
  'There is nothing to set: batches are read ahead by themselves.',
  'do_train do_eval do_predict': 'A command does one thing: plm-jax train trains, plm-jax evaluate scores.',
  'padding padding_side truncation truncation_side pad_to_max_length use_fast use_fast_tokenizer return_tensors':
  'There is nothing to set: texts are cut to data.length and padded at their ends.',
  'do_lower_case do_lower lowercase strip_accents do_basic_tokenize add_prefix_space unk_token':
  'It is a property of the vocabulary in vocab.path; see `plm-jax vocab train --help`.',
  'gpu cuda use_cuda no_cuda device accelerator backend use_cpu platform':
  'The device is jax\'s: JAX_PLATFORMS=cpu in front of a command chooses one.',
  'name_or_path hub_token push_to_hub hub_model_id': 'Nothing is sent to or taken from a hub: name a folder.',
}  # fmt: skip
# words of generation without a setting of ours
GENERATE_FIXES: dict[str, str] = {
  'repetition_penalty encoder_repetition_penalty frequency_penalty presence_penalty rep_pen no_repeat_penalty':
  'There is no penalty for repeated tokens. The setting no_repeat=3 allows no 3 tokens twice.',
  'typical_p min_p top_h top_a tfs eta_cutoff epsilon_cutoff': "The cuts of method 'sample' are top_p and top_k.",
  'eos eos_token eos_token_id stop stops stop_strings stop_words stopping_criteria stop_sequences until':
  'A text ends at the end token of the folder, or after max_new tokens.',
  'bad_words_ids bad_words suppress_tokens begin_suppress_tokens force_words_ids constraints logit_bias sequence_bias':
  'Words can be neither forced nor forbidden.',
  'num_beam_groups diversity_penalty penalty_alpha guidance_scale contrastive_search dola_layers':
  "The methods are 'greedy', 'sample' and 'beam'.",
}  # fmt: skip
TABLES = {'config': KEYS, 'generate': GENERATE}


def same(word: str) -> str:
  """Normalise a word for comparison: no case, hyphens or underscores."""
  return re.sub(r'[-_]', '', word).lower()


def ours(word: str, *, table: str = 'config') -> list[str]:
  """Return the keys that another library's word stands for."""
  asked = same(word)
  return [
    key
    for key, theirs in TABLES[table].items()
    if asked in map(same, theirs.split()) or (asked == same(key.rpartition('.')[2]) and 'NAME' not in key)
  ]


def fix(word: str, fixes: Mapping[str, str] = FIXES) -> str:
  """Return how a thing without a key is done here, if known."""
  return next((told for theirs, told in fixes.items() if same(word) in map(same, theirs.split())), '')


def hint(word: str, known: Collection[str], *, table: str = 'config') -> str:
  """Return ' Did you mean ...?' for an unknown flag or keyword.

  It is empty if nothing is similar. Flags in `known` begin with '--'; `table` is a key of `TABLES`.
  """
  keys = ours(word, table=table)
  lasts = [key.rpartition('.')[2] for key in keys]
  here = [name for last in lasts for name in (last, f'--{last}') if name in known]
  if here:
    return f' Did you mean {" or ".join(map(repr, here))}?'
  if table != 'config':
    told = fix(word.lstrip('-'), GENERATE_FIXES)
    return f' {told}' if told else suggest(word, known)
  if keys:
    flags = (f'--config.{key.replace("NAME", EVALUATION)}' for key in keys)
    return f' Did you mean {" or ".join(flags)}?'
  told = fix(word)
  return f' {told}' if told else suggest(word, known)


def inner_hint(outer: str, word: str) -> str:
  """Return the nearest right key for a key within an unknown one.

  inner_hint('tokenizer', 'model_max_length')    'did you mean data.length?'
  """
  keys, around = ours(word), ours(outer)
  keys = [key for key in keys if key in around] or keys
  if 0 < len(keys) <= 2:
    return f'did you mean {" or ".join(key.replace("NAME", EVALUATION) for key in keys)}?'
  return fix(word)


def key_hint(word: str, known: Collection[str], *, label: str) -> str:
  """Return the nearest right key for an unknown key of a config.

      key_hint('lr', ['rate', 'name'], label='optim')    'did you mean optim.rate?'

  For a thing without a key, it is how that is done here; '' if neither is known. `known` are the keys of the block
  whose dotted key is `label`, '' for the top of the config.
  """
  inside = f'{label}.' if label else ''
  keys = [key for key in ours(word) if key != f'{inside}{word}']  # it may be the key of another model
  here = [last for key in keys if (last := key.rpartition('.')[2]) in known]
  if not here and keys:
    return f'did you mean {" or ".join(key.replace("NAME", EVALUATION) for key in keys)}?'
  if not here and (told := fix(word)):
    return told.removesuffix('.')
  similar = here or near(word, known)
  return f'did you mean {" or ".join(f"{inside}{name}" for name in similar)}?' if similar else ''
